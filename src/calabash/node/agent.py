"""``NodeAgent``: the interface of one node's agent for front ends.

Its components are built in ``wiring`` and run by the threads of ``threads``.
"""

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
from calabash.model.messages import Text
from calabash.model.request import AllocationId
from calabash.node import snapshot_reader
from calabash.node.administration.devices import DeviceAdministration
from calabash.node.administration.mig_layouts import MigLayouts
from calabash.node.allocation_control import admit
from calabash.node.allocations.end_reasons import ended_error
from calabash.node.allocations.retention import RetentionPolicy
from calabash.node.devices.settings import CardSettings
from calabash.node.grant import Grant, Granting
from calabash.node.membership.protocol import Membership
from calabash.node.metering.open_usage import OpenUsage
from calabash.node.modes.protocol import WorkerUsers
from calabash.node.ports.protocol import HostPorts
from calabash.node.processes.unmanaged import UnmanagedPolicy
from calabash.node.slots.names import SlotNames
from calabash.node.slots.page_version import require_supported_slot
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.node.threads import AgentThreads
from calabash.node.wiring import build_parts

__all__ = ["Grant", "NodeAgent"]


class NodeAgent:
    """Agent of the devices of this node. Methods may be called from any thread.

    Args:
        home: directory of the pool; the agent's files are below it.
        store: journal of allocations, usage and events.
        drivers: drivers of the devices on this node, one for each vendor or simulation.
        library: path of the shim library that programs load.
        environment: variables that direct a program to the simulated node; empty on a machine with cards.
        one_process: set the driver's compute mode so that an exclusively allocated card accepts one process only.
        settings: default settings of cards; an administrator can override them for one card.
        unmanaged_policy: action on processes that use a card without a slice of it.
        node: name of the node; "" is the host name of the machine.
        driver_files, membership, mounted, retention, workers, network, names: see ``wiring.build_parts``.
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
        unmanaged_policy: UnmanagedPolicy = UnmanagedPolicy.TELL,
        node: str = "",
        driver_files: DriverFiles = OWN_FILES,
        membership: Membership | None = None,
        mounted: bool = False,
        retention: RetentionPolicy | None = None,
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
            unmanaged_policy=unmanaged_policy,
            driver_files=driver_files,
            membership=membership,
            mounted=mounted,
            retention=retention,
            workers=workers,
            network=network,
            names=names,
        )
        self._threads = AgentThreads(self._parts, home)
        self.open_usage = OpenUsage(self.records, self._parts.usage_tracker, store, clock)
        self._granting = Granting(self._parts, library, settled=self._threads.record)

    def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Start the sharing modes, continue the allocations that an earlier agent granted, then start the threads.

        Args:
            progress: called with the name of each step when it begins.

        Raises:
            CalabashError: VERSION_MISMATCH if a slot has pages of an unsupported version. Nothing is changed then.
        """
        parts = self._parts
        entered = parts.store.allocations()
        parts.allocations.learn_names(entered)
        for record in entered:  # before anything is changed, if a newer version granted them
            require_supported_slot(parts.slots.path(record.id))
        progress("sharing modes")
        for executor in parts.modes.values():
            executor.start()
        with parts.lock:
            progress(f"usage of {len(entered)} allocations")
            written = parts.store.usage_sums.all_so_far(entered)
            for record in entered:
                parts.usage_tracker.restore(record, written.get(record.id))
            progress(f"processes of {len(entered)} allocations")
            self._threads.record(parts.allocations.recover())
            records = parts.allocations.records()
            progress("mode state of allocations")
            for name, executor in parts.modes.items():
                executor.recover([r for r in records if r.placement.mode == name])
            parts.usage_tracker.meters.note_living(parts.lives)
            parts.recorded_ends.ensure_running()
            parts.recorded_ends.take_over(parts.usage_tracker.meters.ended())
        self._threads.start()

    def stop(self) -> None:
        """Stop the threads and modes. Programs of allocations keep running under the same limits."""
        self._threads.stop()
        for executor in self._parts.modes.values():
            executor.stop()
        self._parts.events.flush()
        membership, records = self._parts.membership, self._parts.allocations.records()
        self._parts.recorded_ends.stop(needed=any(membership.populated(record.id) for record in records))
        self._parts.last_round.close()
        self._parts.network.close()
        self._parts.membership.close()

    @property
    def mig_layouts(self) -> MigLayouts:
        """Operations of administrators on sharing modes and MIG layouts of cards."""
        return MigLayouts(self._parts, self.administration)

    @property
    def administration(self) -> DeviceAdministration:
        """Operations of administrators on devices: drain, test, reset and settings."""
        return self._threads.administration

    def arbiter_pid(self) -> int:
        """Return the pid of the arbiter process; 0 while it is being restarted."""
        return self._threads.arbiter_pid

    def grant(self, record: AllocationRecord, *, instead_of: Collection[AllocationId] = ()) -> Grant:
        """Grant an allocation: write it to the journal, create the resources of its sharing mode, and create its slot.

        An allocation that is already held with the same placement is granted again unchanged.

        Args:
            instead_of: allocations whose programs never run at the same time as this one's; their devices count as
                free.

        Raises:
            CalabashError: the grant failed and nothing is held. UNHEALTHY if a device takes no work; NO_CAPACITY,
                NO_MEMORY, NO_CORES or MODE_CONFLICT if other allocations leave too little of a device; DISK_FULL,
                STORE_UNAVAILABLE or NOT_PERMITTED.
        """
        granted = self._granting.grant(record, instead_of=instead_of)
        self._threads.granted()
        return granted

    def enter(self, allocation: AllocationId, process: Process) -> AllocationRecord:
        """Make a process a member of an allocation. Processes that it starts later are members too.

        Raises:
            CalabashError: the allocation has ended (RECLAIM or PREEMPT if that was the reason of its end, else
                CONFLICT), or it is unknown or the process has ended (NOT_FOUND).
        """
        allocations = self._parts.allocations
        before = allocations.get(allocation)
        if before is None:
            raise self._gone(allocation)
        # Without the lock: the kernel may take some milliseconds. If the allocation ends meanwhile, the new member ends too.
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
        return ended_error(self._parts.allocations, self._parts.store, allocation)

    def end(self, allocation: AllocationId, *, reason: str, explanation: Text, gently: bool = False) -> bool:
        """Request the end of an allocation; its slot is released after its programs have ended.

        Returns False if the allocation is not held.

        Args:
            reason, explanation: code and text that are journalled and shown to the user.
            gently: wait for the programs to end by themselves; send them no signal.
        """
        with self._parts.lock:
            known = self._parts.allocations.end(allocation, reason=reason, explanation=explanation, gently=gently)
        self._threads.wake()
        return known

    def snapshot(
        self, *, processes: bool = False, pids: bool = False, only: Collection[AllocationId] | None = None
    ) -> NodeSnapshot:
        """Return devices and allocations of the node as of now.

        Args:
            processes: include the member processes of each allocation, which takes longer.
            pids: include only the pids of these processes.
            only: include only these allocations; None: all.
        """
        return snapshot_reader.snapshot(self._parts, self.node, processes=processes, pids=pids, only=only)

    def has_ended_programs(self) -> bool:
        """Return True if the programs of an allocation have ended, so that it will be released in a moment."""
        return snapshot_reader.has_ended_programs(self._parts)

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        """Return the devices and the slices held of them. Reads no usage page, so it may be called often."""
        return snapshot_reader.devices(self._parts)

    @property
    def membership(self) -> str:
        """Form in which membership of processes is recorded: ``kernel`` (control groups) or ``lease`` (lease files)."""
        return self._parts.membership.form

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        """Return the record of an allocation; None if it is not held."""
        return self._parts.allocations.get(allocation)

    def notes(self, record: AllocationRecord) -> tuple[Text, ...]:
        """Return the warnings of the sharing mode for the user of an allocation, one line each; also after its end."""
        executor = self._parts.modes.get(record.placement.mode)
        return executor.warnings(record) if executor is not None else ()

    def records(self) -> list[AllocationRecord]:
        """Return all held allocations, oldest first."""
        return self._parts.allocations.records()

    def event(self, kind: str, *, reason: str = "", allocation: str = "", device: str = "", message: Text = "") -> None:
        """Log an event and write it to the journal."""
        self._parts.events.emit(kind, reason=reason, allocation=allocation, device=device, message=message)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Register a callback that is called, without any lock, when capacity may have been freed."""
        self._parts.events.subscribe(changed)
