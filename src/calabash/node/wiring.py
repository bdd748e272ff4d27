"""Build the components of a node agent and connect them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.clock import Clock
from calabash.adapters.gpu.library import OWN_FILES, DriverFiles
from calabash.adapters.gpu.protocol import GpuDriver
from calabash.adapters.host.processes import boot_id
from calabash.adapters.store import Store
from calabash.model.request import AllocationId, ModeName
from calabash.node.allocation_control import AllocationControl
from calabash.node.allocations.occupancy import Occupancy
from calabash.node.allocations.retention import RequesterRetention, RetentionPolicy
from calabash.node.allocations.table import Allocations
from calabash.node.audit.loop import NodeAudit
from calabash.node.devices.health_notices import HealthNotifier
from calabash.node.devices.inventory import Inventory
from calabash.node.devices.settings import CardSettings
from calabash.node.events import Events
from calabash.node.health.policy import read_policy
from calabash.node.health.store import HealthStore
from calabash.node.loops import Loops
from calabash.node.membership.protocol import Membership, choose_membership, recorder_arguments
from calabash.node.metering.checkpoint import LastRound
from calabash.node.metering.meters import Meters
from calabash.node.metering.recorded_ends import RecordedEnds
from calabash.node.metering.usage_tracker import UsageTracker
from calabash.node.modes.protocol import HostingExecutor, ModeExecutor, NodeTools, WorkerUsers
from calabash.node.modes.registry import open_modes
from calabash.node.ports.protocol import HostPorts, NoPorts
from calabash.node.processes.inherited import PoolProcesses
from calabash.node.processes.unmanaged import UnmanagedPolicy
from calabash.node.slots.names import SlotNames
from calabash.node.slots.protocol import Slots, choose_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Components of a node agent; each is described by its class.

    ``lock`` is held while the set of held allocations changes, and never while a driver is called.
    """

    lock: threading.RLock
    loops: Loops
    store: Store
    clock: Clock
    membership: Membership
    slots: Slots
    inventory: Inventory
    usage_tracker: UsageTracker
    last_round: LastRound
    recorded_ends: RecordedEnds
    occupancy: Occupancy
    allocations: Allocations
    modes: Mapping[ModeName, ModeExecutor]
    events: Events
    audit: NodeAudit
    health_notifier: HealthNotifier
    environment: Mapping[str, str]
    driver_files: DriverFiles
    network: HostPorts

    def lives(self, allocation: AllocationId) -> bool:
        """Return True if an allocation has a live member process, or is kept until it gets one.

        A worker process of the pool does not count if it serves no client.
        """
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
    unmanaged_policy: UnmanagedPolicy,
    driver_files: DriverFiles = OWN_FILES,
    membership: Membership | None = None,
    mounted: bool = False,
    retention: RetentionPolicy | None = None,
    workers: WorkerUsers | None = None,
    network: HostPorts | None = None,
    names: SlotNames | None = None,
) -> NodeParts:
    """Build the components of a node agent and connect them.

    Args:
        home: directory of the pool.
        library: path of the shim library that programs load.
        environment: variables that direct a program to the simulated node; empty on a machine with cards.
        one_process: an exclusively allocated card accepts one process only.
        settings: default settings of cards.
        unmanaged_policy: action on unmanaged processes.
        driver_files: location of the driver's programs if they are not in the file system of this process.
        membership: membership of processes; None: the strongest form that this process may use.
        mounted: programs see their slots only through mounts of a container runtime.
        retention: decides how long an allocation without member processes is kept.
        workers: users that workers run as; None: mode ``brokered`` is not served.
        network: ports of tenant networks on this host; None: there are none.
        names: names of slots, if another component needs them too.
    """
    lock = threading.RLock()
    events = Events(store, clock)
    own = PoolProcesses()
    names = names or SlotNames()
    membership = membership or choose_membership(home, home / "alloc", names)
    slots = choose_slots(home / "alloc", membership=membership.form, names=names, mounted=mounted)
    inventory = Inventory(
        drivers,
        policy=read_policy(home),
        store=HealthStore(home, boot=boot_id(), now_s=clock.now_s()),
        clock=clock,
        settings=settings,
    )
    last_round = LastRound(home)
    recorded_ends = RecordedEnds(home, boot_id(), recorder_arguments(membership, home / "alloc"))
    usage_tracker = UsageTracker(
        slots,
        clock,
        members=membership.processes,
        model_of=inventory.model_of,
        meters=Meters(clock, boot=boot_id(), mark=last_round.read(), seen=recorded_ends.last_seen),
    )
    loops = Loops(clock, complain=events.complain)
    occupancy = Occupancy(inventory, membership, clock, asked=lambda: loops.wake("devices"))
    retention = retention or RequesterRetention()
    allocations = Allocations(
        store=store,
        slots=slots,
        membership=membership,
        clock=clock,
        occupancy=occupancy,
        usage_of=usage_tracker.close,
        names=names,
        retention=retention,
        boot=boot_id(),
    )

    control = AllocationControl(
        lock=lock,
        allocations=allocations,
        membership=membership,
        slots=slots,
        usage_tracker=usage_tracker,
        retention=retention,
    )
    health_notifier = HealthNotifier(inventory, events, membership, allocations.records)
    tools = NodeTools(
        home=home,
        inventory=inventory,
        library=library,
        environment=environment,
        driver_files=driver_files,
        device_root=_device_root(environment),
        one_process=one_process,
        part_happened=health_notifier.part_happened,
        own=own,
        allocations=control,
        events=events,
        workers=workers,
    )
    return NodeParts(
        lock=lock,
        loops=loops,
        store=store,
        clock=clock,
        membership=membership,
        slots=slots,
        inventory=inventory,
        usage_tracker=usage_tracker,
        last_round=last_round,
        recorded_ends=recorded_ends,
        occupancy=occupancy,
        allocations=allocations,
        modes=open_modes(tools),
        events=events,
        audit=NodeAudit(inventory, membership, clock, control, events, policy=unmanaged_policy, own=own),
        health_notifier=health_notifier,
        environment=environment,
        driver_files=driver_files,
        network=network or NoPorts(),
    )


def _device_root(environment: Mapping[str, str]) -> Path:
    """Return the directory that contains the device nodes: ``/``, or the root beside the state of a simulated node."""
    state = environment.get("CALABASH_SIM")
    return Path(state).parent / "root" if state else Path("/")
