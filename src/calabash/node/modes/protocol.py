"""The questions that the node side of every sharing mode answers, and what it may use to do so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.host.processes import Process
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId, ModeName
from calabash.node.devices.inventory import Inventory
from calabash.node.health.conditions import HealthEvent
from calabash.node.processes.inherited import PoolProcesses
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots.content import SlotDevice
from calabash.node.slots.open_pages import Pages
from calabash.sharing.protocol import Edits

Tell = Callable[[str, str, str, str, str], None]


def _nobodys(pid: int) -> AllocationId | None:
    del pid
    return None


def _no_slot(allocation: AllocationId) -> Path:
    return Path("/nonexistent", allocation)


def _joins_nothing(allocation: AllocationId, process: Process) -> None:
    del allocation, process


def _ends_never(allocation: AllocationId) -> bool:
    del allocation
    return False


def _never_over(allocation: AllocationId) -> bool:
    del allocation
    return False


def _told_nobody(kind: str, reason: str, allocation: str, device: str, message: str) -> None:
    del kind, reason, allocation, device, message


def _nothing_follows() -> None:
    """Where executors stand alone."""


def _ends_nothing(allocation: AllocationId, reason: str, explanation: str) -> None:
    del allocation, reason, explanation


def _nobody_is_told(
    device: DeviceUuid, part: str, event: HealthEvent, cause: str, tenants: Collection[AllocationId]
) -> None:
    """Where executors stand alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUsers:
    """Users that nobody else is, one for each worker at a time: from ``first`` to ``last``."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTools:
    """What executors share.

    Args:
        home: the pool's directory; an executor that must remember something keeps a file of its own there.
        library: the shim.
        environment: what leads a program to the simulated node; empty on a machine with cards.
        open_slots: open pages of everything held, also of what only has a view of devices.
        driver_files: where the driver's own programs are when they are not ours.
        device_root: below which /dev and /proc describe the cards; None: device nodes are left alone.
        one_process: cards that are given out exclusively take one process only.
        end: ends an allocation that cannot go on: id, reason, explanation. Never called with a lock of an executor's that
            ``leave`` takes.
        part_happened: something happened to a part of a card that the executor looks after, such as a MIG device (by its
            UUID) or a daemon (by a name): card, part, event, cause, and the allocations that it concerns. People and those
            tenants are told; ``inventory.health.of_part`` then says whether the part may be given out. It is well again after
            RESET_DONE (where it needed a reset) and TEST_PASSED, both the executor's to say.
        own: processes of an earlier pool that an executor takes over.
        allocation_of: whose a process is, by the kernel's word or by its lease.
        tell: an event: kind, reason, allocation, device, message.
        contexts: what an empty context costs in bytes, by model of card, as it is learned.
        changed: room may have appeared; not to be called under a lock.
        slot_of: where the slot of an allocation is.
        join: makes a process of ours a member of an allocation, which then runs. Not to be called under a lock. Raises
            CalabashError.
        ending: whether the end of an allocation has been asked for.
        over: whether the tenant of an allocation cannot use it again
            (``node.allocations.retention``), though nobody has asked for its end.
        workers: as whom workers run that use slices in their tenants' stead; None: this node has none.
    """

    home: Path
    inventory: Inventory
    library: Path
    environment: Mapping[str, str]
    driver_files: DriverFiles = OWN_FILES
    open_slots: Callable[[], Sequence[OpenSlot]] = tuple
    device_root: Path | None = None
    one_process: bool = False
    end: Callable[[AllocationId, str, str], None] = _ends_nothing
    part_happened: Callable[[DeviceUuid, str, HealthEvent, str, Collection[AllocationId]], None] = _nobody_is_told
    own: PoolProcesses = field(default_factory=PoolProcesses)
    allocation_of: Callable[[int], AllocationId | None] = _nobodys
    tell: Tell = _told_nobody
    contexts: dict[str, int] = field(default_factory=dict)
    changed: Callable[[], None] = _nothing_follows
    slot_of: Callable[[AllocationId], Path] = _no_slot
    join: Callable[[AllocationId, Process], None] = _joins_nothing
    ending: Callable[[AllocationId], bool] = _ends_never
    over: Callable[[AllocationId], bool] = _never_over
    workers: WorkerUsers | None = None


class ModeExecutor(Protocol):
    """One mode on this node. ``enter``, ``leave``, ``edits`` and ``recover`` are called under the agent's lock and never
    wait; ``start``, ``prepare``, ``vacate``, ``provide``, ``look`` and ``verify`` are called without it and may ask drivers."""

    @property
    def name(self) -> ModeName:
        """The sharing mode that it serves."""
        ...

    @property
    def standing(self) -> bool:
        """Whether its tenants need not be programs of this host, so that allocations may stand without one."""
        ...

    def start(self) -> None:
        """Once, before anything is adopted: learn what must be known of the cards."""
        ...

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """What the slot says about each device. Changes nothing. Raises CalabashError when it cannot be enforced."""
        ...

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """It is journalled and its room is held: make what it needs on the node, and what the slot then says.

        May take seconds: partitions are cut here, daemons started, drivers bound. Asked again it answers the same. Raises
        CalabashError; then the allocation is released and ``leave`` is called. After a crash in the middle ``recover``
        is called without it.
        """
        ...

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        """Its slot stands: do what depends on it. Raises CalabashError; then it is released."""
        ...

    def edits(self, record: AllocationRecord) -> Edits:
        """What its program needs of this node, beside what the mode's rule says everywhere."""
        ...

    def vacate(self, record: AllocationRecord) -> None:
        """The devices of this allocation are about to change to its mode, which is another one: undo what this mode keeps
        on them although nobody has a slice. As ``provide`` it may take seconds; raises CalabashError when it cannot."""
        ...

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        """What its user should know of what was granted, one line each."""
        ...

    def leave(self, record: AllocationRecord) -> None:
        """It is over: undo ``provide`` and ``enter``; harmless when there is nothing to undo. What takes time is left to
        ``verify``, or to the next ``provide``."""
        ...

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        """After a start: take up what is held in this mode, and undo what a crash left of all others."""
        ...

    def look(self) -> None:
        """Several times a second: keep true what tenants see."""
        ...

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        """Once a second: mend what somebody has changed behind our back; what it was, one line each."""
        ...

    def stop(self) -> None:
        """The agent stops, and whoever runs keeps running: end what nobody needs. Nothing else is called afterwards."""
        ...


@runtime_checkable
class HostingExecutor(Protocol):
    """A mode in whose slots processes of ours run, and none of the tenant's. All but ``slot_user`` are called without the
    agent's lock."""

    def slot_user(self, record: AllocationRecord) -> int:
        """The user whose processes run in its slot; -1: ours."""
        ...

    def launch(self, record: AllocationRecord) -> None:
        """Its slot stands: start what runs in it. Raises CalabashError; then it is released."""
        ...

    def tend(self) -> None:
        """Ten times a second: see to what runs. Never asks a driver."""
        ...

    def needs(self, allocation: AllocationId) -> bool:
        """Whether what runs in its slot serves anybody; true where nothing of it is known."""
        ...


class ViewOnly:
    """A mode that promises no amounts: its slots narrow the view of devices and limit nothing."""

    name: ModeName
    standing: bool = False

    def __init__(self, tools: NodeTools) -> None:
        self._tools = tools

    def start(self) -> None:
        """Nothing is to be learned."""

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        return tuple(SlotDevice(uuid=part.device) for part in record.placement.slices)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Nothing is to be made."""
        return self.prepare(record)

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        """The slot is all there is."""

    def edits(self, record: AllocationRecord) -> Edits:
        del record
        return Edits()

    def vacate(self, record: AllocationRecord) -> None:
        """Nothing is kept on idle devices."""

    def warnings(self, record: AllocationRecord) -> tuple[str, ...]:
        del record
        return ()

    def leave(self, record: AllocationRecord) -> None:
        """The slot is all there was."""

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        """Slots are adopted by themselves."""

    def look(self) -> None:
        """Nothing changes in them."""

    def verify(self, held: Sequence[AllocationRecord]) -> list[str]:
        del held
        return []

    def stop(self) -> None:
        """Nothing runs for it."""
