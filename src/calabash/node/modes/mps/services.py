"""All MPS services of a node: creation, adoption from an earlier pool, and removal.

Daemons outlive their pool, as the tenants' programs do. The running daemons are listed with their start times in ``mps.json``
in the pool's home, so that the next pool adopts the daemons that are needed and ends the others.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.gpu.nvidia.mps import SOCKET_PATH_MAX, MpsControl
from calabash.adapters.host.files import write_durably
from calabash.adapters.host.processes import Process, alive, send_signal
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text
from calabash.model.request import AllocationId
from calabash.node.health.conditions import HealthEvent, Need
from calabash.node.modes.mps.daemon import Share
from calabash.node.modes.mps.notices import RECOVERY_EVENTS, ServiceTools
from calabash.node.modes.mps.service import CardService
from calabash.node.modes.mps.target import Place, Served, place_of, served_at
from calabash.node.modes.protocol import NodeTools
from calabash.node.socket_directory import PATH_BYTES_MAX, socket_directory
from calabash.sharing import mps

log = structlog.get_logger(__name__)


class RunningDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """A running daemon of a device, or of one of its MIG instances.

    Args:
        device: UUID of the device.
        pid, start_time: identity of the daemon process.
        profile, start: profile and first memory slice of the MIG instance; "" and -1: the whole device.
    """

    device: str
    pid: int
    start_time: int
    profile: str = ""
    start: int = -1


class MpsDaemonFile:
    """The file of running MPS daemons. Methods may be called from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._written: tuple[RunningDaemon, ...] | None = None

    def write(self, running: Callable[[], Iterable[RunningDaemon | None]]) -> None:
        """Replace the content by the daemons that ``running`` returns; None in its result is left out.

        ``running`` is called with the lock of the file held.
        """
        with self._lock:
            self._write(tuple(one for one in running() if one is not None))

    def _write(self, daemons: tuple[RunningDaemon, ...]) -> None:
        if daemons == self._written:
            return
        try:
            if daemons:
                write_durably(self._file, msgspec.json.encode(daemons))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            log.error("the file of MPS daemons cannot be written", file=str(self._file), error=error.strerror)
            return
        self._written = daemons

    def read(self) -> tuple[RunningDaemon, ...]:
        """Return the daemons that an earlier pool wrote; none if the file does not exist or is damaged."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[RunningDaemon, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of MPS daemons cannot be read", file=str(self._file), error=str(error))
            return ()


NOTES_MAX = 256


class Services:
    """MPS services by device or MIG instance. Methods may be called from any thread.

    ``notes`` are warnings that are shown with an allocation.
    """

    def __init__(self, tools: NodeTools) -> None:
        self.notes: dict[AllocationId, Text] = {}
        self._tools = tools
        self._lock = threading.Lock()
        self._services: dict[Place, CardService] = {}
        self._file = MpsDaemonFile(tools.home / "mps.json")

    def all(self) -> list[CardService]:
        """Return the present services."""
        return list(self._services.values())

    def at(self, place: Place) -> CardService | None:
        """Return the service of a device or MIG instance; None if there is none."""
        return self._services.get(place)

    def hold(self, record: AllocationRecord, share_of: Callable[[AllocationRecord, Served], Share]) -> CardService:
        """Give an allocation a share of its service, which is created if necessary.

        Args:
            record: the allocation.
            share_of: returns the share of an allocation.

        Raises:
            CalabashError: NO_DEVICES, UNHEALTHY: the device or instance does not exist, or is not the one that the
                service serves.
        """
        place = place_of(record)
        served = served_at(place, self._tools)
        with self._lock:
            service = self._services.get(place)
            if service is not None and service.served.uuid != served.uuid and service.idle:
                service.stop()  # it served an instance that was destroyed
                service = None
            service = service or self._made(served)
            if service.served.uuid != served.uuid:
                raise CalabashError(
                    f"{served.name} was created again while allocations hold the old instance", reason=Reason.UNHEALTHY
                )
            service.hold(record.id, share_of(record, service.served))
            return service

    def adopt(self) -> None:
        """Adopt the daemons of an earlier pool. Daemons without allocations are ended at the next poll."""
        left, known = False, dict[Place, Process]()
        for running in self._file.read():
            process = Process(pid=running.pid, start_time=running.start_time)
            place = (DeviceUuid(running.device), running.profile, running.start)
            if not alive(process):
                continue
            with self._lock:
                service = self._services.get(place) or self._maybe(place)
            if service is None:
                left = True
            else:
                known[place] = process
        for service in self.all():
            if (daemon := service.adopt(known.get(service.served.place))) is not None:
                self._tools.own.add(daemon)
        self._end_unknown()
        if not left:
            self.write_records()

    def _end_unknown(self) -> None:
        """Kill daemons that belong to no service: a pool that was killed may have left them without recording them."""
        known = {service.served.directory for service in self.all()}
        try:
            directory = service_directory(self._tools.home, make=False)
        except CalabashError:
            return  # the directory belongs to another user, so no daemon of this pool uses it
        for place in directory.iterdir() if directory.is_dir() else ():
            if place.name not in known:
                for process in MpsControl(place, "", self._tools.environment, self._tools.driver_files).processes():
                    send_signal(process, signal.SIGKILL)

    def stop(self, service: CardService) -> bool:
        """Stop an idle service. Return False if an allocation holds a share again."""
        place = service.served.place
        with self._lock:
            if not service.idle or self._services.get(place) is not service:
                return False
            del self._services[place]
            service.stop()
        service.report()
        self.write_records()
        return True

    def write_records(self) -> None:
        """Write the running daemons to the file."""
        self._file.write(lambda: [_running(service) for service in self.all()])

    def clear_failures(self) -> None:
        """Clear the health state of services that have ended or serve again."""
        serving = {(s.served.card, s.served.part): s.serves for s in self.all()}
        health = self._tools.inventory.health
        for device in self._tools.inventory.devices():
            for part, facts in health.entry(device.uuid).parts.items():
                if (
                    mps.is_service_name(part)
                    and facts.need is not Need.NOTHING
                    and serving.get((device.uuid, part), True)
                ):
                    for event in RECOVERY_EVENTS:
                        self._tools.part_happened(device.uuid, part, event, "the service serves or has ended", ())

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _maybe(self, place: Place) -> CardService | None:
        try:
            return self._made(served_at(place, self._tools))
        except CalabashError:
            return None  # the device or instance does not exist any more

    def _made(self, served: Served) -> CardService:
        """Create and register a service. Called with the lock held."""
        tools = ServiceTools(
            name=served.name,
            allocation_of=self._tools.allocations.allocation_of,
            reports=_Reports(served, self._tools, self._note),
            environment=self._tools.environment,
            files=self._tools.driver_files,
            rules=self._tools.inventory.policy.mps,
        )
        service = CardService(served, service_directory(self._tools.home) / served.directory, tools)
        self._services[served.place] = service
        return service

    def _note(self, allocation: AllocationId, note: Text) -> None:
        """Set the note of an allocation. The last ``NOTES_MAX`` are kept, also after the allocations have ended."""
        self.notes = dict(list(self.notes.items())[-NOTES_MAX:]) | {allocation: note}


class _Reports:
    """Reports of one service to the node; see ``ServiceReports``."""

    def __init__(self, served: Served, tools: NodeTools, note: Callable[[AllocationId, Text], None]) -> None:
        self._served, self._tools, self._note = served, tools, note

    def record_event(self, kind: str, reason: str, allocation: str, message: Text) -> None:
        self._tools.events.emit(kind, reason=reason, allocation=allocation, device=self._served.card, message=message)

    def set_note(self, allocation: AllocationId, note: Text) -> None:
        self._note(allocation, note)

    def health_event(self, event: HealthEvent, cause: Text, tenants: Collection[AllocationId]) -> None:
        self._tools.part_happened(self._served.card, self._served.part, event, cause, tenants)


def _running(service: CardService) -> RunningDaemon | None:
    found, (device, profile, start) = service.daemon, service.served.place
    if found is None:
        return None
    return RunningDaemon(device=device, profile=profile, start=start, pid=found.pid, start_time=found.start_time)


def service_directory(home: Path, *, make: bool = True) -> Path:
    """Return the directory that contains the directories of all services, with short paths for sockets.

    ``make`` is as in ``socket_directory``. Raises NOT_PERMITTED.
    """
    longest = "/99-99/pipe/control" + " " * (PATH_BYTES_MAX - SOCKET_PATH_MAX)
    return socket_directory(home, "mps", longest=longest, make=make)
