"""The agent of one node: what front ends hold. Everything behind it is built in ``parts`` and kept by ``watching``."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from calabash.adapters.clock import Clock
from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.gpu.protocol import GpuDriver
from calabash.adapters.host.processes import Process
from calabash.adapters.store import Store
from calabash.model.allocation import AllocationRecord
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node import snapshot_reader
from calabash.node.administration.devices import Care
from calabash.node.administration.mig_layouts import Cutting
from calabash.node.allocations.end_reasons import gone
from calabash.node.allocations.retention import Tenure
from calabash.node.devices.settings import CardSettings
from calabash.node.grant import Grant, Granting
from calabash.node.membership.protocol import Membership
from calabash.node.metering.open_usage import OpenUsage
from calabash.node.modes.protocol import WorkerUsers
from calabash.node.ports.protocol import HostPorts
from calabash.node.processes.unmanaged import StrangerPolicy
from calabash.node.slots.names import SlotNames
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.node.threads import Watching
from calabash.node.wiring import admit, build_parts

__all__ = ["Grant", "NodeAgent"]


class NodeAgent:
    """Everything about this node's cards. Methods may be called from any thread.

    Args:
        home: the pool's directory, for the agent's own files below it.
        library: the shim.
        environment: what leads a program to the simulated node; empty on a machine with cards.
        one_process: cards that are given out exclusively take one process only (the driver's compute mode).
        settings: how cards are given out, unless their operator says otherwise of one.
        strangers: what happens to processes on a card that have no slice of it.
        node: its name; "" is the machine's.
        driver_files, membership, tenure, workers, network, names: see ``parts.build_parts``.
    """

    def __init__(
        self,
        *,
        home: Path,
        store: Store,
        clock: Clock,
        drivers: Sequence[GpuDriver],
        library: Path,
        environment: Mapping[str, str] | None = None,
        one_process: bool = False,
        settings: CardSettings | None = None,
        strangers: StrangerPolicy = StrangerPolicy.TELL,
        node: str = "",
        driver_files: DriverFiles = OWN_FILES,
        membership: Membership | None = None,
        tenure: Tenure | None = None,
        workers: WorkerUsers | None = None,
        network: HostPorts | None = None,
        names: SlotNames | None = None,
    ) -> None:
        self.node = NodeName(node or socket.gethostname())
        self._parts = build_parts(
            home=home,
            store=store,
            clock=clock,
            drivers=drivers,
            library=library,
            environment=dict(environment or {}),
            one_process=one_process,
            settings=settings or CardSettings(),
            strangers=strangers,
            driver_files=driver_files,
            membership=membership,
            tenure=tenure,
            workers=workers,
            network=network,
            names=names,
        )
        self._watching = Watching(self._parts, home)
        self.open_usage = OpenUsage(self.records, self._parts.ledgers, store, clock)
        self._granting = Granting(self._parts, library, settled=self._watching.record)

    def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Learn what the modes must know, adopt what is there, then watch.

        Args:
            progress: called with each step that begins.
        """
        parts = self._parts
        progress("sharing modes")
        for executor in parts.modes.values():
            executor.start()
        with parts.lock:
            entered = parts.store.allocations()
            parts.allocations.learn_names(entered)
            progress(f"usage of {len(entered)} allocations")
            written = parts.store.usage_book.all_so_far(entered)
            for record in entered:
                parts.ledgers.restore(record, written.get(record.id))
            progress(f"processes of {len(entered)} allocations")
            self._watching.record(parts.allocations.recover())
            records = parts.allocations.records()
            progress("what modes made for allocations")
            for name, executor in parts.modes.items():
                executor.recover([r for r in records if r.placement.mode == name])
            parts.ledgers.meters.settled(parts.lives)
            parts.recorded_ends.tend()
            parts.recorded_ends.take_over(parts.ledgers.meters.ended())
        self._watching.start()

    def stop(self) -> None:
        """Stop watching; whoever runs keeps running under the same limits."""
        self._watching.stop()
        for executor in self._parts.modes.values():
            executor.stop()
        self._parts.events.flush()
        membership, records = self._parts.membership, self._parts.allocations.records()
        self._parts.recorded_ends.stop(needed=any(membership.populated(record.id) for record in records))
        self._parts.last_round.close()
        self._parts.network.close()
        self._parts.membership.close()

    @property
    def cutting(self) -> Cutting:
        """What operators do with the modes of cards."""
        return Cutting(self._parts, self.care)

    @property
    def care(self) -> Care:
        """What operators do with its cards."""
        return self._watching.care

    def arbiter_pid(self) -> int:
        """0 when it is just being started again."""
        return self._watching.arbiter_pid

    def grant(self, record: AllocationRecord, *, instead_of: Collection[AllocationId] = ()) -> Grant:
        """Journal it, make what it needs and its slot, if there is room. Raises CalabashError and then holds nothing.

        One that is held already, with the same placement, is granted again as it is. ``instead_of``: allocations whose
        programs never run at the same time as this one's, so that their room is this one's as well.

        The reason says what is missing: UNHEALTHY when a device takes no work, NO_CAPACITY, NO_MEMORY, NO_CORES or
        MODE_CONFLICT when others are still on it, DISK_FULL, STORE_UNAVAILABLE, NOT_PERMITTED.
        """
        granted = self._granting.grant(record, instead_of=instead_of)
        self._watching.granted()
        return granted

    def enter(self, allocation: AllocationId, process: Process) -> AllocationRecord:
        """Make a process the program of an allocation: it, and whatever it starts from now on, is a member.

        Raises CalabashError when the allocation is not held any more (RECLAIM, PREEMPT, CONFLICT with the reason of its end,
        NOT_FOUND where none is known) or the process has ended (NOT_FOUND).
        """
        allocations = self._parts.allocations
        before = allocations.get(allocation)
        if before is None:
            raise self._gone(allocation)
        # Without the lock: the kernel may take some milliseconds. An allocation that ends meanwhile ends this one too.
        try:
            admit(self._parts.membership, self._parts.slots, allocation, process)
        except CalabashError:
            if allocations.get(allocation) is None or allocations.ending(allocation):
                raise self._gone(allocation) from None
            raise
        with self._parts.lock:
            after = allocations.started(allocation, process)
        if after is None:
            raise self._gone(allocation)
        if before.state is not after.state:
            self.event("started", allocation=allocation)
        return after

    def _gone(self, allocation: AllocationId) -> CalabashError:
        return gone(self._parts.allocations, self._parts.store, allocation)

    def end(self, allocation: AllocationId, *, reason: str, explanation: str, gently: bool = False) -> bool:
        """End its programs (``gently``: wait for them) and release it; False when it is not held."""
        with self._parts.lock:
            known = self._parts.allocations.end(allocation, reason=reason, explanation=explanation, gently=gently)
        self._watching.wake()
        return known

    def snapshot(
        self, *, processes: bool = False, pids: bool = False, only: Collection[AllocationId] | None = None
    ) -> NodeSnapshot:
        """Return everything about the node now.

        Args:
            processes: of each allocation too, which takes longer.
            pids: the numbers of these processes alone.
            only: leave out all other allocations.
        """
        return snapshot_reader.snapshot(self._parts, self.node, processes=processes, pids=pids, only=only)

    def is_anybody_leaving(self) -> bool:
        """Return True if the programs of an allocation have ended, so that it will be released in a moment."""
        return snapshot_reader.is_anybody_leaving(self._parts)

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        """Its devices and what is on them, without a look at anybody's pages: for whoever asks often."""
        return snapshot_reader.devices(self._parts)

    @property
    def membership(self) -> str:
        """How it is known which processes belong to an allocation: ``kernel`` or ``lease``."""
        return self._parts.membership.form

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        """One that is held; None when it is not, or not any more."""
        return self._parts.allocations.get(allocation)

    def notes(self, record: AllocationRecord) -> tuple[str, ...]:
        """What its user should know of it now, or after its end: one line each."""
        executor = self._parts.modes.get(record.placement.mode)
        return executor.warnings(record) if executor is not None else ()

    def records(self) -> list[AllocationRecord]:
        """Everything held, oldest first."""
        return self._parts.allocations.records()

    def event(self, kind: str, *, reason: str = "", allocation: str = "", device: str = "", message: str = "") -> None:
        """Tell people."""
        self._parts.events.tell(kind, reason=reason, allocation=allocation, device=device, message=message)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it called, without any lock, whenever room may have appeared."""
        self._parts.events.subscribe(changed)
