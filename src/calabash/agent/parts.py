"""The parts of one node's agent, built once and joined: who is behind the face that front ends hold."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.agent.allocations import Allocations
from calabash.agent.events import Events
from calabash.agent.inventory import Inventory
from calabash.agent.ledgers import Ledgers
from calabash.agent.membership import Membership, choose_membership
from calabash.agent.modes.protocol import ModeExecutor, NodeTools
from calabash.agent.modes.registry import open_modes
from calabash.agent.occupancy import Occupancy
from calabash.agent.probe import try_card
from calabash.agent.slots import Slots, choose_slots
from calabash.model.device import Device
from calabash.model.request import ModeName
from calabash.seams.clock import Clock
from calabash.seams.gpu.protocol import GpuDriver
from calabash.seams.store import Store


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
    occupancy: Occupancy
    allocations: Allocations
    modes: Mapping[ModeName, ModeExecutor]
    events: Events


def build_parts(
    *,
    home: Path,
    store: Store,
    clock: Clock,
    drivers: Sequence[GpuDriver],
    library: Path,
    environment: Mapping[str, str],
    one_process: bool,
) -> NodeParts:
    """Build and join them. ``environment``: what leads a program to the simulated node; empty on a machine of cards."""

    def probe(driver: GpuDriver, device: Device) -> bool:
        return try_card(driver, device, environment).passed

    membership = choose_membership(home, home / "alloc")
    slots = choose_slots(home / "alloc", membership=membership.form)
    inventory = Inventory(drivers, probe=probe)
    ledgers = Ledgers(slots, clock, members=membership.processes)
    occupancy = Occupancy(inventory, membership, clock)
    tools = NodeTools(
        home=home,
        inventory=inventory,
        library=library,
        environment=environment,
        keepings=ledgers.keepings,
        device_root=None if environment else Path("/"),
        one_process=one_process,
    )
    return NodeParts(
        lock=threading.RLock(),
        store=store,
        clock=clock,
        membership=membership,
        slots=slots,
        inventory=inventory,
        ledgers=ledgers,
        occupancy=occupancy,
        allocations=Allocations(
            store=store,
            slots=slots,
            membership=membership,
            clock=clock,
            occupancy=occupancy,
            usage_of=ledgers.close,
        ),
        modes=open_modes(tools),
        events=Events(store, clock),
    )
