"""The parts of one node's agent, built once and joined: who is behind the face that front ends hold."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.clock import Clock
from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.gpu.protocol import GpuDriver
from calabash.adapters.host.cgroups.marks import mark
from calabash.adapters.host.processes import Process, boot_id
from calabash.adapters.store import Store
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, ModeName
from calabash.node.allocations.occupancy import Occupancy
from calabash.node.allocations.retention import RequesterTenure, Tenure
from calabash.node.allocations.table import Allocations, holders_of
from calabash.node.audit.loop import Hooks, Truth
from calabash.node.devices.health_notices import Tidings
from calabash.node.devices.inventory import Inventory
from calabash.node.devices.settings import CardSettings
from calabash.node.events import Events
from calabash.node.health.policy import read_policy
from calabash.node.health.store import HealthBook
from calabash.node.membership.protocol import Membership, choose_membership, witness_words
from calabash.node.metering.checkpoint import LastRound
from calabash.node.metering.meters import Meters
from calabash.node.metering.recorded_ends import RecordedEnds
from calabash.node.metering.usage_tracker import Ledgers
from calabash.node.modes.protocol import HostingExecutor, ModeExecutor, NodeTools, WorkerUsers
from calabash.node.modes.registry import open_modes
from calabash.node.ports.protocol import HostPorts, NoPorts
from calabash.node.processes.inherited import OwnProcesses
from calabash.node.processes.unmanaged import StrangerPolicy
from calabash.node.slots.names import SlotNames
from calabash.node.slots.protocol import Slots, choose_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What an agent is made of. ``lock`` is held while what is held changes, and never while a driver is asked."""

    lock: threading.RLock
    store: Store
    clock: Clock
    membership: Membership
    slots: Slots
    inventory: Inventory
    ledgers: Ledgers
    last_round: LastRound
    recorded_ends: RecordedEnds
    occupancy: Occupancy
    allocations: Allocations
    modes: Mapping[ModeName, ModeExecutor]
    events: Events
    truth: Truth
    tidings: Tidings
    environment: Mapping[str, str]
    driver_files: DriverFiles
    network: HostPorts

    def lives(self, allocation: AllocationId) -> bool:
        """Whether anybody uses an allocation or may still come for it: a process of ours that serves nobody does not."""
        hosting = (executor for executor in self.modes.values() if isinstance(executor, HostingExecutor))
        return self.allocations.lives(allocation) and all(executor.needs(allocation) for executor in hosting)


def build_parts(
    *,
    home: Path,
    store: Store,
    clock: Clock,
    drivers: Sequence[GpuDriver],
    library: Path,
    environment: Mapping[str, str],
    one_process: bool,
    settings: CardSettings,
    strangers: StrangerPolicy,
    driver_files: DriverFiles = OWN_FILES,
    membership: Membership | None = None,
    tenure: Tenure | None = None,
    workers: WorkerUsers | None = None,
    network: HostPorts | None = None,
    names: SlotNames | None = None,
) -> NodeParts:
    """Build and join them.

    Args:
        environment: what leads a program to the simulated node; empty on a machine of cards.
        driver_files: where the driver's own programs are when they are not ours.
        membership: where others make the groups of processes; None: the strongest form that this process may have.
        tenure: how long an allocation is kept that nobody uses.
        workers: as whom workers run; None: mode ``brokered`` is not served.
        network: ports of tenant networks on this host; None: there are none.
        names: what slots are called, where others know it too.
    """
    lock = threading.RLock()
    events = Events(store, clock)
    own = OwnProcesses()
    names = names or SlotNames()
    mounted = membership is not None
    membership = membership or choose_membership(home, home / "alloc", names)
    slots = choose_slots(home / "alloc", membership=membership.form, names=names, mounted=mounted)
    inventory = Inventory(
        drivers,
        policy=read_policy(home),
        book=HealthBook(home, boot=boot_id(), now_s=clock.now_s()),
        clock=clock,
        settings=settings,
    )
    last_round = LastRound(home)
    recorded_ends = RecordedEnds(home, boot_id(), witness_words(membership, home / "alloc"))
    ledgers = Ledgers(
        slots,
        clock,
        members=membership.processes,
        model_of=inventory.model_of,
        meters=Meters(clock, boot=boot_id(), mark=last_round.read(), seen=recorded_ends.of),
    )
    occupancy = Occupancy(inventory, membership, clock)
    tenure = tenure or RequesterTenure()
    allocations = Allocations(
        store=store,
        slots=slots,
        membership=membership,
        clock=clock,
        occupancy=occupancy,
        usage_of=ledgers.close,
        names=names,
        tenure=tenure,
        boot=boot_id(),
    )

    def end(allocation: AllocationId, reason: str, explanation: str) -> None:
        with lock:
            allocations.end(allocation, reason=reason, explanation=explanation)

    hooks = Hooks(
        keepings=ledgers.keepings,
        views=ledgers.opened,
        entitled=lambda device: {*holders_of(allocations.records(), device), *allocations.orphaned(device)},
        tell=lambda kind, reason, allocation, device, message: events.tell(
            kind, reason=reason, allocation=allocation, device=device, message=message
        ),
        end=end,
        changed=events.changed,
    )

    def join(allocation: AllocationId, process: Process) -> None:
        admit(membership, slots, allocation, process)
        with lock:
            if allocations.started(allocation, process) is None:
                raise CalabashError(f"allocation {allocation} has just ended", reason=Reason.CONFLICT, hint="ask again")

    def over(allocation: AllocationId) -> bool:
        record = allocations.get(allocation)
        return record is not None and tenure.over(record)

    tidings = Tidings(inventory, events, membership, allocations.records)
    tools = NodeTools(
        home=home,
        inventory=inventory,
        library=library,
        environment=environment,
        driver_files=driver_files,
        keepings=ledgers.opened,
        device_root=_device_root(environment),
        one_process=one_process,
        end=end,
        part_happened=tidings.part_happened,
        own=own,
        allocation_of=membership.allocation_of,
        tell=hooks.tell,
        changed=events.changed,
        slot_of=slots.path,
        join=join,
        ending=lambda allocation: allocations.ending(allocation) is not None,
        over=over,
        workers=workers,
    )
    return NodeParts(
        lock=lock,
        store=store,
        clock=clock,
        membership=membership,
        slots=slots,
        inventory=inventory,
        ledgers=ledgers,
        last_round=last_round,
        recorded_ends=recorded_ends,
        occupancy=occupancy,
        allocations=allocations,
        modes=open_modes(tools),
        events=events,
        truth=Truth(inventory, membership, clock, hooks, policy=strangers, own=own),
        tidings=tidings,
        environment=environment,
        driver_files=driver_files,
        network=network or NoPorts(),
    )


def admit(membership: Membership, slots: Slots, allocation: AllocationId, process: Process) -> None:
    """Make a process a member of an allocation, and mark it as one that accepts sealed slots only where there are such.
    Raises CalabashError and then it is none."""
    membership.enter(allocation, process)
    if slots.sealed and membership.group(allocation):
        mark(process)


def _device_root(environment: Mapping[str, str]) -> Path:
    """Where the cards' device nodes are: a simulated node has a root of its own beside its state."""
    state = environment.get("CALABASH_SIM")
    return Path(state).parent / "root" if state else Path("/")
