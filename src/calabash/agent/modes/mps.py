"""MPS on this node: one daemon for each card that is shared so, started with its first slice and stopped after its last.

Daemons outlive their pool, as tenants do. What runs stands in ``mps.json`` in the home, with start times, so that the
next pool takes over what is still needed and ends the rest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from calabash.agent.modes.mps_news import ServiceTools
from calabash.agent.modes.mps_service import CardService
from calabash.agent.modes.mps_shares import Share
from calabash.agent.modes.protocol import NodeTools, ViewOnly
from calabash.agent.slot_content import SlotDevice
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.units import MIB
from calabash.seams.gpu.mps import SOCKET_PATH_MAX, find_program
from calabash.seams.host.files import write_durably
from calabash.seams.host.processes import Process, alive
from calabash.sharing import mps
from calabash.sharing.protocol import Edits, Mount

NOTES_MAX = 256

log = structlog.get_logger(__name__)


class RunningDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that was started for a card, whose compute mode was set."""

    device: str
    pid: int
    start_time: int


class MpsExecutor(ViewOnly):
    """Slices that NVIDIA's service holds to their share, and the shim to their memory."""

    name = mps.MODE.name

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._lock = threading.Lock()
        self._services: dict[DeviceUuid, CardService] = {}
        self._notes: dict[AllocationId, str] = {}
        self._file = tools.home / "mps.json"

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        find_program(self._tools.environment, self._tools.driver_files)
        if not self._tools.library.is_file():
            raise CalabashError(
                f"{self._tools.library.name} has not been built, so programs cannot ask for their share",
                reason=Reason.BAD_FILE,
                hint="build it with: make native",
            )
        if len(record.placement.slices) != 1:
            raise CalabashError(
                f"a program reaches the service of one device, asked {len(record.placement.slices)}",
                reason=Reason.MODE_CONFLICT,
                hint="ask for one device in mode mps",
            )
        (part,) = record.placement.slices
        # No policy: the service holds the share, and everybody runs at once, so there are no turns to hand out.
        return (SlotDevice(uuid=part.device, memory_limit_bytes=part.memory_mib * MIB, core_percent=part.core_percent),)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        devices = self.prepare(record)
        service = self._hold(record)
        self._set_exclusive(service, True)
        service.ensure()
        self._remember()
        return devices

    def edits(self, record: AllocationRecord) -> Edits:
        """Its environment lets an honest program lower itself to its share even when the door is closed."""
        service = self._services.get(record.placement.slices[0].device)
        if service is None:
            return Edits()
        share, pipe = _share(record), str(service.control.pipe)
        environment = (
            *service.control.reach,
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(share.percent)),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"{record.placement.slices[0].device}={share.memory_mib}M"),
            ("CALABASH_MPS_DOOR", str(service.door)),
        )
        door = str(service.door.parent)
        mounts = (
            Mount(path=door, inside=door),
            Mount(path=pipe, inside=pipe, read_only=False),
            Mount(path="/dev/shm", inside="/dev/shm", read_only=False),  # noqa: S108 - the service's own channel
        )
        return Edits(environment=environment, mounts=mounts)

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        note = self._notes.get(record.id)
        return (note,) if note else ()

    def leave(self, record: AllocationRecord) -> None:
        """Others may use the card at once; the daemon is stopped at the next look, when nobody else has come."""
        for part in record.placement.slices:
            service = self._services.get(part.device)
            if service is None:
                continue
            service.leave(record.id)
            if service.idle:
                self._set_exclusive(service, False)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        for record in held:
            self._hold(record).resume()
        for running in self._written():
            process = Process(pid=running.pid, start_time=running.start_time)
            with self._lock:
                service = self._of(DeviceUuid(running.device))
            if service is not None and alive(process):
                self._tools.own.add(process)
                service.adopt(process)

    def look(self) -> None:
        for uuid, service in list(self._services.items()):
            if service.idle:
                self._stop(uuid, service)
                continue
            try:
                before = service.daemon
                service.look()
                if service.daemon != before:
                    self._remember()
            except CalabashError as error:
                log.error("the MPS service is not well", device=service.device.index, error=error.message)

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        del held
        mended: list[str] = []
        for service in list(self._services.values()):
            if service.idle:
                continue
            self._set_exclusive(service, True)
            try:
                mended += service.verify()
            except CalabashError as error:
                log.warning("the MPS service cannot be checked", device=service.device.index, error=error.message)
        return mended

    def stop(self) -> None:
        """Daemons with tenants go on without a pool; the next one takes them over."""
        for uuid, service in list(self._services.items()):
            if service.idle:
                self._stop(uuid, service)
            else:
                service.release()

    def _stop(self, uuid: DeviceUuid, service: CardService) -> None:
        with self._lock:  # ``provide`` may have come for it meanwhile
            if not service.idle:
                return
            del self._services[uuid]
            service.stop()
            self._set_exclusive(service, False)
        self._remember()

    def _hold(self, record: AllocationRecord) -> CardService:
        """Its service, which from now on is not idle."""
        device = record.placement.slices[0].device
        with self._lock:
            service = self._of(device)
            if service is None:
                raise CalabashError(f"device {device} is not on this node", reason=Reason.NO_DEVICES)
            service.hold(record.id, _share(record))
            return service

    def _of(self, uuid: DeviceUuid) -> CardService | None:
        """Under the lock; None when the node has no such device."""
        service = self._services.get(uuid)
        device = next((d for d in self._tools.inventory.devices() if d.uuid == uuid), None)
        if service is None and device is not None:
            tools = ServiceTools(
                allocation_of=self._tools.allocation_of,
                tell=lambda kind, reason, allocation, message: self._tools.tell(
                    kind, reason, allocation, uuid, message
                ),
                environment=self._tools.environment,
                files=self._tools.driver_files,
                notes=self._note,
            )
            service = CardService(device, service_directory(self._tools.home) / str(device.index), tools)
            self._services[uuid] = service
        return service

    def _note(self, allocation: AllocationId, note: str) -> None:
        """Kept beyond its end: that is when people ask."""
        self._notes = dict(list(self._notes.items())[-NOTES_MAX:]) | {allocation: note}

    def _set_exclusive(self, service: CardService, exclusive: bool) -> None:
        """Nobody gets onto the card past the service; where that cannot be set, strangers are still told of."""
        try:
            uuid = service.device.uuid
            self._tools.inventory.driver_of(uuid).set_exclusive(uuid, exclusive)
        except CalabashError as error:
            log.debug("the compute mode could not be set", device=service.device.index, error=error.message)

    def _remember(self) -> None:
        running = [
            RunningDaemon(device=uuid, pid=service.daemon.pid, start_time=service.daemon.start_time)
            for uuid, service in list(self._services.items())
            if service.daemon is not None
        ]
        try:
            if running:
                write_durably(self._file, msgspec.json.encode(running))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            log.error("which MPS daemons run is not written down", error=error.strerror)

    def _written(self) -> list[RunningDaemon]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[RunningDaemon])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.error("what MPS daemons an earlier pool has left is not known", error=str(error))
            return []


def _share(record: AllocationRecord) -> Share:
    (part,) = record.placement.slices
    return Share(percent=max(1, part.core_percent), memory_mib=part.memory_mib)


def service_directory(home: Path) -> Path:
    """Where sockets lie: in the home, unless its name is too long for a socket's. Raises CalabashError(NOT_PERMITTED)."""
    own = home / "mps"
    if len(os.fsencode(own)) < SOCKET_PATH_MAX - len("/99/pipe/control"):
        return own
    name = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]
    base = Path("/run" if os.geteuid() == 0 else "/tmp")  # noqa: S108 - whose it is is looked at
    directory = base / f"calabash-mps-{name}"
    directory.mkdir(mode=0o711, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise CalabashError(f"{directory} is somebody else's", reason=Reason.NOT_PERMITTED, hint="use a shorter home")
    return directory


def open_mode(tools: NodeTools) -> MpsExecutor:
    """The executor of this mode."""
    return MpsExecutor(tools)
