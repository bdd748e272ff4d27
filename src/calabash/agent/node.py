"""The agent of one node: what front ends hold. Everything behind it is built in ``parts`` and kept by ``watching``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.agent import view
from calabash.agent.care import Care
from calabash.agent.cutting import Cutting
from calabash.agent.membership import Membership
from calabash.agent.modes.protocol import ModeExecutor
from calabash.agent.modes.registry import executor_of
from calabash.agent.parts import build_parts
from calabash.agent.room import require_room, require_served
from calabash.agent.slot_content import SlotDevice, SlotSpec
from calabash.agent.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.agent.strangers import StrangerPolicy
from calabash.agent.tenure import Tenure
from calabash.agent.watching import Watching
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.seams.clock import Clock
from calabash.seams.gpu.protocol import GpuDriver
from calabash.seams.host.processes import Process
from calabash.seams.store import Store
from calabash.sharing.protocol import Edits
from calabash.sharing.registry import mode_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A journalled allocation, what its program needs to use it, and what its user should know, one line each."""

    record: AllocationRecord
    edits: Edits
    warnings: tuple[str, ...] = ()


class NodeAgent:
    """Everything about this node's cards. Methods may be called from any thread.

    Args:
        home: the pool's directory, for the agent's own files below it.
        library: the shim.
        environment: what leads a program to the simulated node; empty on a machine with cards.
        one_process: cards that are given out exclusively take one process only (the driver's compute mode).
        spill_mib: host memory that it gives for what does not fit on its cards; 0: nothing may be spilled.
        strangers: what happens to processes on a card that have no slice of it.
        node: its name; "" is the machine's.
        membership, tenure: see ``parts.build_parts``.
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
        spill_mib: int = 0,
        strangers: StrangerPolicy = StrangerPolicy.TELL,
        node: str = "",
        membership: Membership | None = None,
        tenure: Tenure | None = None,
    ) -> None:
        self.node = NodeName(node or socket.gethostname())
        self._library = library
        self._parts = build_parts(
            home=home,
            store=store,
            clock=clock,
            drivers=drivers,
            library=library,
            environment=dict(environment or {}),
            one_process=one_process,
            spill_mib=spill_mib,
            strangers=strangers,
            membership=membership,
            tenure=tenure,
        )
        self._watching = Watching(self._parts, home)

    def start(self) -> None:
        """Learn what the modes must know, adopt what is there, then watch."""
        parts = self._parts
        for executor in parts.modes.values():
            executor.start()
        with parts.lock:
            self._watching.record(parts.allocations.recover())
            records = parts.allocations.records()
            for record in records:
                parts.ledgers.restore(record, parts.store.usage(record.id))
            for name, executor in parts.modes.items():
                executor.recover([r for r in records if r.placement.mode == name])
        self._watching.start()

    def stop(self) -> None:
        """Stop watching; whoever runs keeps running under the same limits."""
        self._watching.stop()
        for executor in self._parts.modes.values():
            executor.stop()
        self._parts.events.flush()
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
        mode = mode_named(record.placement.mode)
        executor = executor_of(mode.name, self._parts.modes)
        require_served(record, membership=self._parts.membership.form, own_uid=os.geteuid())
        _require_may_stand(record, executor)
        executor.prepare(record)
        with self._parts.lock:
            known = self._parts.allocations.get(record.id)
            if known is not None:
                return self._again(known, record)
            require_room(record, view.devices(self._parts), but=instead_of)
            held = self._parts.allocations.hold(record)
        devices = self._provided(held, executor)
        spec = SlotSpec(
            allocation=record.id,
            devices=devices,
            tenant_uid=record.uid if record.uid >= 0 and os.geteuid() == 0 else None,
            leaseless=self._parts.membership.form == "kernel",
        )
        with self._parts.lock:
            granted = self._granted(held, spec, executor)
            edits = self._edits(granted)
        self.event("granted", allocation=record.id, message=_described(granted, self._parts.inventory.devices()))
        return Grant(record=granted, edits=edits, warnings=executor.warnings(granted))

    def _provided(self, held: AllocationRecord, executor: ModeExecutor) -> tuple[SlotDevice, ...]:
        """Without the lock: others are granted and released meanwhile."""
        try:
            for other in self._parts.modes.values():
                if other is not executor:
                    other.vacate(held)
            return executor.provide(held)
        except BaseException as error:
            with self._parts.lock:
                executor.leave(held)
                self._parts.allocations.give_up(held.id, error)
            raise

    def _granted(self, held: AllocationRecord, spec: SlotSpec, executor: ModeExecutor) -> AllocationRecord:
        allocations = self._parts.allocations
        try:
            granted = allocations.grant(spec)
        except BaseException:
            executor.leave(held)
            raise
        try:
            executor.enter(granted, self._parts.slots.pages(held.id))
        except CalabashError as error:
            executor.leave(granted)
            allocations.end(held.id, reason=error.reason, explanation=error.message)
            self._watching.record(allocations.sweep())
            raise
        return (allocations.started(held.id, None) or granted) if held.request.standing else granted

    def _again(self, known: AllocationRecord, wanted: AllocationRecord) -> Grant:
        if self._parts.allocations.making(known.id):
            raise CalabashError(
                f"allocation {known.id} is just being made",
                reason=Reason.CONFLICT,
                hint="ask again in a second",
            )
        if self._parts.allocations.ending(known.id) or known.placement != wanted.placement:
            raise CalabashError(
                f"allocation {known.id} is still held with another placement, or is just ending",
                reason=Reason.CONFLICT,
                hint="it is tried again when its last process has ended",
            )
        return Grant(record=known, edits=self._edits(known))

    def _edits(self, record: AllocationRecord) -> Edits:
        slot = str(self._parts.slots.path(record.id))
        mode = mode_named(record.placement.mode)
        everywhere = mode.container_edits(record.placement.slices, library=str(self._library), slot=slot)
        return everywhere.joined(executor_of(mode.name, self._parts.modes).edits(record))

    def enter(self, allocation: AllocationId, process: Process) -> AllocationRecord:
        """Make a process the program of an allocation: it, and whatever it starts from now on, is a member.

        Raises CalabashError(NOT_FOUND) when the allocation is not held any more or the process has ended.
        """
        before = self._parts.allocations.get(allocation)
        if before is None:
            raise _not_held(allocation)
        # Without the lock: the kernel may take some milliseconds. An allocation that ends meanwhile ends this one too.
        self._parts.membership.enter(allocation, process)
        with self._parts.lock:
            after = self._parts.allocations.started(allocation, process)
        if after is None:
            raise _not_held(allocation)
        if before.state is not after.state:
            self.event("started", allocation=allocation)
        return after

    def end(self, allocation: AllocationId, *, reason: str, explanation: str, gently: bool = False) -> bool:
        """End its programs (``gently``: wait for them) and release it; False when it is not held."""
        with self._parts.lock:
            known = self._parts.allocations.end(allocation, reason=reason, explanation=explanation, gently=gently)
        self._watching.wake()
        return known

    def snapshot(self, *, processes: bool = False) -> NodeSnapshot:
        """Everything about the node now. ``processes``: with the processes of each allocation, which takes longer."""
        return view.snapshot(self._parts, self.node, processes=processes)

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        """Its devices and what is on them, without a look at anybody's pages: for whoever asks often."""
        return view.devices(self._parts)

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


def _require_may_stand(record: AllocationRecord, executor: ModeExecutor) -> None:
    if record.request.standing and not executor.standing:
        raise CalabashError(
            f"an allocation in mode {executor.name} lives as long as its programs, and cannot stand without one",
            hint="leave `standing` out",
        )


def _not_held(allocation: str) -> CalabashError:
    message = f"there is no allocation {allocation!r} held"
    return CalabashError(message, reason=Reason.NOT_FOUND, hint="see `calabash ps`")


def _described(record: AllocationRecord, devices: Sequence[Device]) -> str:
    """``vgpu: 8192 MiB 30% of device 0``."""
    index = {d.uuid: d.index for d in devices}
    parts = [f"{p.memory_mib} MiB {p.core_percent}% of device {index.get(p.device)}" for p in record.placement.slices]
    return f"{record.placement.mode}: {', '.join(parts)}"
