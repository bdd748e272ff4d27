"""Interface of the executors of sharing modes, and the tools of the node that they use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.host.processes import Process
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.messages import Text
from calabash.model.request import AllocationId, ModeName
from calabash.node.devices.inventory import Inventory
from calabash.node.health.conditions import HealthEvent
from calabash.node.processes.inherited import PoolProcesses
from calabash.node.processes.reaper import OpenSlot
from calabash.node.slots.content import SlotDevice
from calabash.node.slots.open_pages import Pages
from calabash.sharing.protocol import Edits


class HeldAllocations(Protocol):
    """Operations on allocations that executors use; ``node.allocation_control`` implements them."""

    def open_slots(self) -> Sequence[OpenSlot]:
        """Return the open pages of all slots, including slots without limits."""
        ...

    def slot_of(self, allocation: AllocationId) -> Path:
        """Return the directory of the slot of an allocation."""
        ...

    def allocation_of(self, pid: int) -> AllocationId | None:
        """Return the allocation of a process, by its cgroup or its lease."""
        ...

    def end(self, allocation: AllocationId, reason: str, explanation: Text) -> None:
        """End an allocation that cannot continue. Must not be called with a lock that ``ModeExecutor.leave`` takes."""
        ...

    def is_ending(self, allocation: AllocationId) -> bool:
        """Return True if the end of an allocation has been requested."""
        ...

    def is_abandoned(self, allocation: AllocationId) -> bool:
        """Return True if the tenant of an allocation cannot use it again, although its end has not been requested."""
        ...

    def join(self, allocation: AllocationId, process: Process) -> None:
        """Make a process of the pool a member of an allocation, which then is running. Raises CalabashError.

        Must not be called with a lock held.
        """
        ...


class NodeEvents(Protocol):
    """Events of the node; ``node.events`` implements them."""

    def emit(self, kind: str, *, reason: str = "", allocation: str = "", device: str = "", message: Text = "") -> None:
        """Log an event and write it to the journal.

        Args:
            kind: name of the event, such as ``over_use``.
            reason: reason code; "" for none. allocation, device: the objects that it concerns; "" for none.
        """
        ...

    def changed(self) -> None:
        """Announce that capacity may have been freed. Must not be called with a lock held."""
        ...


class NoAllocations:
    """Allocations for executors without an agent: there are none, and requested ends are ignored."""

    def open_slots(self) -> Sequence[OpenSlot]:
        return ()

    def slot_of(self, allocation: AllocationId) -> Path:
        return Path("/nonexistent", allocation)

    def allocation_of(self, pid: int) -> AllocationId | None:
        del pid
        return None

    def end(self, allocation: AllocationId, reason: str, explanation: Text) -> None:
        """Do nothing."""

    def is_ending(self, allocation: AllocationId) -> bool:
        del allocation
        return False

    def is_abandoned(self, allocation: AllocationId) -> bool:
        del allocation
        return False

    def join(self, allocation: AllocationId, process: Process) -> None:
        """Do nothing."""


class NoEvents:
    """Events for executors without an agent: they are dropped."""

    def emit(self, kind: str, *, reason: str = "", allocation: str = "", device: str = "", message: Text = "") -> None:
        """Do nothing."""

    def changed(self) -> None:
        """Do nothing."""


def _reports_nothing(
    device: DeviceUuid, part: str, event: HealthEvent, cause: Text, tenants: Collection[AllocationId]
) -> None:
    """Do nothing: default for executors without an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUsers:
    """Range of user IDs for workers, from ``first`` to ``last``. No other process may run as one of these users."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTools:
    """Settings and functions of the agent that the executors share.

    Args:
        home: the pool's directory, in which an executor may have a file for state that must survive the pool.
        inventory: the node's devices.
        library: path of the shim.
        environment: environment that leads a program to the simulated node; empty on a machine with GPUs.
        driver_files: location of the driver's programs if they are mounted from the host.
        device_root: root of the /dev and /proc that describe the devices; None: device nodes are not changed.
        one_process: True if exclusive devices accept only one process.
        allocations: operations on allocations.
        events: events of the node.
        part_happened: reports an event of a part of a device that the executor manages, such as a MIG device (by its
            UUID) or a daemon (by a name): device, part, event, cause, and the affected allocations. Operators and these
            tenants are notified; ``inventory.health.of_part`` then tells if the part may be used. The executor makes the part
            healthy again by RESET_DONE (if it needed a reset) and TEST_PASSED.
        own: processes of an earlier pool that an executor has adopted.
        contexts: memory of an empty CUDA context in bytes, by device model, as far as it is known.
        workers: user IDs for workers; None: this node starts no workers.
    """

    home: Path
    inventory: Inventory
    library: Path
    environment: Mapping[str, str]
    driver_files: DriverFiles = OWN_FILES
    device_root: Path | None = None
    one_process: bool = False
    allocations: HeldAllocations = field(default_factory=NoAllocations)
    events: NodeEvents = field(default_factory=NoEvents)
    part_happened: Callable[[DeviceUuid, str, HealthEvent, Text, Collection[AllocationId]], None] = _reports_nothing
    own: PoolProcesses = field(default_factory=PoolProcesses)
    contexts: dict[str, int] = field(default_factory=dict)
    workers: WorkerUsers | None = None


class ModeExecutor(Protocol):
    """Executor of one sharing mode on this node.

    ``enter``, ``leave``, ``edits`` and ``recover`` are called with the agent's lock held and never wait. ``start``,
    ``prepare``, ``vacate``, ``provide``, ``poll`` and ``verify`` are called without it and may call drivers.
    """

    @property
    def name(self) -> ModeName:
        """The sharing mode that the executor serves."""
        ...

    @property
    def standing(self) -> bool:
        """True if an allocation may exist without a program of this host."""
        ...

    def start(self) -> None:
        """Read the state of the devices. Called once, before allocations are adopted."""
        ...

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Return the limits of the slot for each device. Changes nothing. Raises CalabashError if they cannot be enforced."""
        ...

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Create the resources of a journalled allocation on the node, and return the limits of its slot.

        May take seconds: MIG instances are created here, daemons started, drivers bound. Idempotent. Raises CalabashError;
        the allocation is then released and ``leave`` is called. After a crash during this call, ``recover`` is called with the
        allocation not held.
        """
        ...

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        """Do the steps that need the slot, which exists now. Raises CalabashError; the allocation is then released."""
        ...

    def edits(self, record: AllocationRecord) -> Edits:
        """Return the variables, mounts and device nodes that a program needs on this node.

        They are added to the edits of the mode in ``sharing``, which are the same on every node.
        """
        ...

    def vacate(self, record: AllocationRecord) -> None:
        """Remove this mode's idle resources, such as MIG instances, from devices that another mode is about to use.

        May take seconds. Raises CalabashError if that is impossible.
        """
        ...

    def warnings(self, record: AllocationRecord) -> tuple[Text, ...]:
        """Return warnings about the granted slices for the user, one line each."""
        ...

    def leave(self, record: AllocationRecord) -> None:
        """Undo ``provide`` and ``enter`` for an allocation that has ended. Does nothing if there is nothing to undo.

        Slow steps are left to ``verify`` or the next ``provide``.
        """
        ...

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        """Continue the held allocations of this mode after a start, and remove what is left of all others."""
        ...

    def poll(self) -> None:
        """Update the state that tenants see. Called several times a second."""
        ...

    def verify(self, held: Sequence[AllocationRecord]) -> Sequence[Text]:
        """Correct changes that were made from outside, once a second. Return one line for each correction."""
        ...

    def stop(self) -> None:
        """End the daemons and other resources that no allocation needs. Called last, when the agent stops.

        Programs keep running.
        """
        ...


@runtime_checkable
class HostingExecutor(Protocol):
    """Executor of a mode in whose slots processes of the pool run instead of the tenant's.

    All methods except ``slot_user`` are called without the agent's lock.
    """

    def slot_user(self, record: AllocationRecord) -> int:
        """Return the user whose processes run in the slot; -1: the pool's user."""
        ...

    def launch(self, record: AllocationRecord) -> None:
        """Start the processes of the slot, which exists now. Raises CalabashError; the allocation is then released."""
        ...

    def poll_processes(self) -> None:
        """Check the running processes, ten times a second. Never calls a driver."""
        ...

    def needs(self, allocation: AllocationId) -> bool:
        """Return True if the processes of the pool in the slot of an allocation are still needed.

        True also if the executor does not know the allocation.
        """
        ...


class ViewOnly:
    """Base class of executors. Its slots restrict the visible devices and have no limits; the node is not changed."""

    name: ModeName
    standing: bool = False

    def __init__(self, tools: NodeTools) -> None:
        self._tools = tools

    def start(self) -> None:
        """Do nothing."""

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        return tuple(SlotDevice(uuid=part.device) for part in record.placement.slices)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Return the limits of the slot, as ``prepare`` does; create nothing."""
        return self.prepare(record)

    def enter(self, record: AllocationRecord, pages: Pages) -> None:
        """Do nothing."""

    def edits(self, record: AllocationRecord) -> Edits:
        del record
        return Edits()

    def vacate(self, record: AllocationRecord) -> None:
        """Do nothing."""

    def warnings(self, record: AllocationRecord) -> tuple[Text, ...]:
        del record
        return ()

    def leave(self, record: AllocationRecord) -> None:
        """Do nothing."""

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        """Do nothing: the agent adopts the slots."""

    def poll(self) -> None:
        """Do nothing."""

    def verify(self, held: Sequence[AllocationRecord]) -> Sequence[Text]:
        del held
        return []

    def stop(self) -> None:
        """Do nothing."""
