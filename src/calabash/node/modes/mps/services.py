"""All multi-process services of a node: which there are, for whom, and what of them outlives this pool.

Daemons outlive their pool, as tenants do. What runs stands in ``mps.json`` in the home, with start times, so that the
next pool takes over what is still needed and ends the rest.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from calabash.adapters.gpu.nvidia.mps import SOCKET_PATH_MAX, MpsControl
from calabash.adapters.host.processes import Process, alive, send_signal
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.health.conditions import HealthEvent, Need
from calabash.node.modes.mps.notices import WELL_AGAIN, ServiceTools
from calabash.node.modes.mps.records import DaemonBook, RunningDaemon
from calabash.node.modes.mps.service import CardService
from calabash.node.modes.mps.shares import Share
from calabash.node.modes.mps.target import Place, Served, place_of, served_at
from calabash.node.modes.protocol import NodeTools
from calabash.node.socket_directory import PATH_BYTES_MAX, socket_directory
from calabash.sharing import mps

NOTES_MAX = 256


class Services:
    """Services by what they serve. Methods may be called from any thread.

    ``notes``: what users of allocations are to know when they are asked about.
    """

    def __init__(self, tools: NodeTools) -> None:
        self.notes: dict[AllocationId, str] = {}
        self._tools = tools
        self._lock = threading.Lock()
        self._services: dict[Place, CardService] = {}
        self._book = DaemonBook(tools.home / "mps.json")

    def all(self) -> list[CardService]:
        """Those that there are now."""
        return list(self._services.values())

    def at(self, place: Place) -> CardService | None:
        """The one of a place."""
        return self._services.get(place)

    def hold(self, record: AllocationRecord, share_of: Callable[[AllocationRecord, Served], Share]) -> CardService:
        """The service of an allocation, which from now on is not idle. Raises CalabashError where there is nothing to
        serve."""
        place = place_of(record)
        served = served_at(place, self._tools)
        with self._lock:
            service = self._services.get(place)
            if service is not None and service.served.uuid != served.uuid and service.idle:
                service.stop()  # of an instance that was there before
                service = None
            service = service or self._made(served)
            if service.served.uuid != served.uuid:
                raise CalabashError(
                    f"{served.name} was made anew, others still had the old one", reason=Reason.UNHEALTHY
                )
            service.hold(record.id, share_of(record, service.served))
            return service

    def adopt(self) -> None:
        """Take over what an earlier pool has left; what nobody needs is ended at the next look, what has ended is forgotten."""
        left, known = False, dict[Place, Process]()
        for running in self._book.read():
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
            self.remember()

    def _end_unknown(self) -> None:
        """A pool that was killed may have started daemons that its book does not have, and that nobody needs."""
        known = {service.served.directory for service in self.all()}
        try:
            directory = service_directory(self._tools.home, make=False)
        except CalabashError:
            return  # it is somebody else's, and nothing of ours lives there
        for place in directory.iterdir() if directory.is_dir() else ():
            if place.name not in known:
                for process in MpsControl(place, "", self._tools.environment, self._tools.driver_files).processes():
                    send_signal(process, signal.SIGKILL)

    def stop(self, service: CardService) -> bool:
        """End one that is idle; False when somebody has come for it meanwhile."""
        place = service.served.place
        with self._lock:
            if not service.idle or self._services.get(place) is not service:
                return False
            del self._services[place]
            service.stop()
        service.report()
        self.remember()
        return True

    def remember(self) -> None:
        """Write down what runs."""
        self._book.write(lambda: [_running(service) for service in self.all()])

    def forget_ills(self) -> None:
        """A service that has ended, or that another pool has taken over well, is not ill."""
        well = {(s.served.card, s.served.part): s.serves for s in self.all()}
        health = self._tools.inventory.health
        for device in self._tools.inventory.devices():
            for part, facts in health.entry(device.uuid).parts.items():
                if mps.is_service_name(part) and facts.need is not Need.NOTHING and well.get((device.uuid, part), True):
                    for event in WELL_AGAIN:
                        self._tools.part_happened(device.uuid, part, event, "it serves, or nobody needs it", ())

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _maybe(self, place: Place) -> CardService | None:
        try:
            return self._made(served_at(place, self._tools))
        except CalabashError:
            return None  # nothing is there any more

    def _made(self, served: Served) -> CardService:
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
        self._services[served.place] = service
        return service

    def _note(self, allocation: AllocationId, note: str) -> None:
        """Kept beyond its end: that is when people ask."""
        self.notes = dict(list(self.notes.items())[-NOTES_MAX:]) | {allocation: note}


def _running(service: CardService) -> RunningDaemon | None:
    found, (device, profile, start) = service.daemon, service.served.place
    if found is None:
        return None
    return RunningDaemon(device=device, profile=profile, start=start, pid=found.pid, start_time=found.start_time)


def service_directory(home: Path, *, make: bool = True) -> Path:
    """Where sockets lie. Raises CalabashError(NOT_PERMITTED)."""
    longest = "/99-99/pipe/control" + " " * (PATH_BYTES_MAX - SOCKET_PATH_MAX)
    return socket_directory(home, "mps", longest=longest, make=make)
