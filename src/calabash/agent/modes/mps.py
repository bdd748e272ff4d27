"""MPS on this node: one daemon for each card, or MIG instance, that is shared so, started with its first slice and stopped
after its last.

Daemons outlive their pool, as tenants do. What runs stands in ``mps.json`` in the home, with start times, so that the
next pool takes over what is still needed and ends the rest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog

from calabash.agent.health import HealthEvent, Need
from calabash.agent.modes.compute_modes import ComputeModes
from calabash.agent.modes.mps_book import DaemonBook, RunningDaemon
from calabash.agent.modes.mps_news import WELL_AGAIN, ServiceTools
from calabash.agent.modes.mps_served import Place, Served, place_of, served_at
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
from calabash.seams.host.processes import Process, alive
from calabash.sharing import mps
from calabash.sharing.protocol import Edits, Mount, visible_device

NOTES_MAX = 256

log = structlog.get_logger(__name__)


class MpsExecutor(ViewOnly):
    """Slices that NVIDIA's service holds to their share, and the shim to their memory."""

    name = mps.MODE.name

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._lock = threading.Lock()
        self._services: dict[Place, CardService] = {}
        self._notes: dict[AllocationId, str] = {}
        self._book = DaemonBook(tools.home / "mps.json")
        self._compute = ComputeModes(tools.home / "compute-modes.mps.json", tools.inventory.driver_of)

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
        return _slot(record, served_at(place_of(record), self._tools))

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        service = self._hold(record)
        self._make_exclusive(service)
        service.ensure()
        self._remember()
        return _slot(record, service.served)

    def edits(self, record: AllocationRecord) -> Edits:
        """Its environment lets an honest program lower itself to its share even when the door is closed."""
        service = self._services.get(place_of(record))
        if service is None:
            return Edits()
        share, pipe = _share(record, service.served), str(service.control.pipe)
        environment = (
            *service.control.reach,
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(share.percent)),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={share.memory_mib}M"),
            ("CALABASH_MPS_DOOR", str(service.door)),
            *(() if service.served.whole else visible_device(service.served.uuid)),
        )
        door = str(service.door.parent)
        mounts = (
            Mount(path=door, inside=door),
            Mount(path=pipe, inside=pipe, read_only=False),
            Mount(path="/dev/shm", inside="/dev/shm", read_only=False),  # noqa: S108 - the service's own channel
        )
        return Edits(environment=environment, mounts=mounts, device_nodes=service.served.nodes)

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        note = self._notes.get(record.id)
        return (note,) if note else ()

    def leave(self, record: AllocationRecord) -> None:
        """Others may use the card at once; the daemon is stopped at the next look, when nobody else has come."""
        service = self._services.get(place_of(record))
        if service is None:
            return
        service.leave(record.id)
        if service.idle:
            self._compute.restore(service.served.card)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        for record in held:
            try:
                self._hold(record).resume()
            except CalabashError as error:  # ``verify`` ends it, or it comes back
                log.warning("an allocation has no MPS service", allocation=record.id, error=error.message)
        for running in self._book.read():
            process = Process(pid=running.pid, start_time=running.start_time)
            if not alive(process):
                continue
            service = self._found((DeviceUuid(running.device), running.profile, running.start))
            if service is not None:
                self._tools.own.add(process)
                service.adopt(process)
        self._compute.keep_only({service.served.card for service in self._services.values() if not service.idle})

    def look(self) -> None:
        for place, service in list(self._services.items()):
            if service.idle:
                self._stop(place, service)
                continue
            try:
                before = service.daemon
                service.look()
                if service.daemon != before:
                    self._remember()
            except CalabashError as error:
                log.error("the MPS service is not well", served=service.served.name, error=error.message)

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        mended: list[str] = []
        for record in held:
            self._keep(record)
        services = [service for service in list(self._services.values()) if not service.idle]
        for service in services:
            if self._make_exclusive(service):
                mended.append(f"the compute mode of {service.served.name} had been changed and is set again")
            try:
                mended += service.verify()
            except CalabashError as error:
                log.warning("the MPS service cannot be checked", served=service.served.name, error=error.message)
        self._compute.keep_only({s.served.card for s in list(self._services.values()) if not s.idle})
        self._forget_ills()
        return mended

    def stop(self) -> None:
        """Daemons with tenants go on without a pool; the next one takes them over."""
        for place, service in list(self._services.items()):
            if service.idle:
                self._stop(place, service)
            else:
                service.release()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _stop(self, place: Place, service: CardService) -> None:
        with self._lock:  # ``provide`` may have come for it meanwhile
            if not service.idle or self._services.get(place) is not service:
                return
            del self._services[place]
            service.stop()
        self._compute.restore(service.served.card)
        self._remember()

    def _hold(self, record: AllocationRecord) -> CardService:
        """Its service, which from now on is not idle. Raises CalabashError where there is nothing to serve."""
        place = place_of(record)
        served = served_at(place, self._tools)
        with self._lock:
            service = self._services.get(place)
            if service is not None and service.served.uuid != served.uuid and service.idle:
                service.stop()  # of an instance that was there before
                service = None
            service = service or self._made(place, served)
            if service.served.uuid != served.uuid:
                raise CalabashError(
                    f"{served.name} was made anew, others still had the old one", reason=Reason.UNHEALTHY
                )
            service.hold(record.id, _share(record, service.served))
            return service

    def _keep(self, record: AllocationRecord) -> None:
        """An allocation whose instance is gone cannot go on."""
        place = place_of(record)
        service = self._services.get(place)
        if service is not None and service.serves and service.holds(record.id):
            return
        try:
            if served_at(place, self._tools).uuid == (service.served.uuid if service is not None else ""):
                return
            why = "was made anew"
        except CalabashError as error:
            if error.reason is not Reason.UNHEALTHY or not place[1]:
                return  # the card does not answer now
            why = "is gone"
        self._tools.end(record.id, Reason.UNHEALTHY, f"its {place[1]} at {place[2]} {why}")

    def _found(self, place: Place) -> CardService | None:
        """The service of a place; None when nothing is there."""
        with self._lock:
            service = self._services.get(place)
            try:
                return service or self._made(place, served_at(place, self._tools))
            except CalabashError:
                return None

    def _made(self, place: Place, served: Served) -> CardService:
        """Under the lock."""

        def happened(event: HealthEvent, cause: str, tenants: Collection[AllocationId]) -> None:
            self._tools.part_happened(served.card, served.part, event, cause, tenants)

        tools = ServiceTools(
            name=served.name,
            allocation_of=self._tools.allocation_of,
            tell=lambda kind, reason, allocation, message: self._tools.tell(
                kind, reason, allocation, served.card, message
            ),
            environment=self._tools.environment,
            files=self._tools.driver_files,
            notes=self._note,
            happened=happened,
            rules=self._tools.inventory.policy.mps,
        )
        service = CardService(served, service_directory(self._tools.home) / served.directory, tools)
        self._services[place] = service
        return service

    def _forget_ills(self) -> None:
        """A service that has ended, or that another pool has taken over well, is not ill."""
        well = {(s.served.card, s.served.part): s.serves for s in list(self._services.values())}
        for device in self._tools.inventory.devices():
            for part, facts in self._tools.inventory.health.entry(device.uuid).parts.items():
                if mps.is_part(part) and facts.need is not Need.NOTHING and well.get((device.uuid, part), True):
                    for event in WELL_AGAIN:
                        self._tools.part_happened(device.uuid, part, event, "it serves, or nobody needs it", ())

    def _note(self, allocation: AllocationId, note: str) -> None:
        """Kept beyond its end: that is when people ask."""
        self._notes = dict(list(self._notes.items())[-NOTES_MAX:]) | {allocation: note}

    def _make_exclusive(self, service: CardService) -> bool:
        """Nobody gets onto the card past the service; where that cannot be set, strangers are still told of. Whether it had
        been undone."""
        if not service.served.whole:
            return False  # what is cut has no compute mode
        try:
            return self._compute.make_exclusive(service.served.card)
        except CalabashError as error:
            log.debug("the compute mode could not be set", served=service.served.name, error=error.message)
            return False

    def _remember(self) -> None:
        self._book.write(
            RunningDaemon(device=place[0], profile=place[1], start=place[2], pid=found.pid, start_time=found.start_time)
            for place, service in list(self._services.items())
            if (found := service.daemon) is not None
        )


def _slot(record: AllocationRecord, served: Served) -> tuple[SlotDevice, ...]:
    """No policy: the service holds the share, and everybody runs at once, so there are no turns to hand out."""
    share = _share(record, served)
    return (SlotDevice(uuid=served.uuid, memory_limit_bytes=share.memory_mib * MIB, core_percent=share.percent),)


def _share(record: AllocationRecord, served: Served) -> Share:
    (part,) = record.placement.slices
    return Share(percent=served.share_of(part), memory_mib=part.memory_mib)


def service_directory(home: Path) -> Path:
    """Where sockets lie: in the home, unless its name is too long for a socket's. Raises CalabashError(NOT_PERMITTED)."""
    own = home / "mps"
    if len(os.fsencode(own)) < SOCKET_PATH_MAX - len("/99-99/pipe/control"):
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
