"""Reads a node's parts into frozen snapshots."""

from __future__ import annotations

from collections.abc import Collection

from calabash.adapters.host.processes import Process, alive
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import OUT_OF_SERVICE, Device, NodeName
from calabash.model.request import AllocationId, Isolation
from calabash.node.allocations.table import DeviceHeld
from calabash.node.processes.unmanaged import StrangerPolicy
from calabash.node.snapshot import AllocationSnapshot, DeviceSnapshot, NodeSnapshot
from calabash.node.wiring import NodeParts
from calabash.sharing.registry import SHARING_MODES


def devices(parts: NodeParts) -> tuple[DeviceSnapshot, ...]:
    """All devices with what is on them, of one moment."""
    with parts.lock:
        held = parts.allocations.by_device()
        return tuple(
            _device(parts, device, held.get(device.uuid, DeviceHeld())) for device in parts.inventory.devices()
        )


def ill_parts(parts: NodeParts) -> dict[AllocationId, frozenset[int]]:
    """Slices, by their place in their allocation, that are a part of a card, such as a MIG device, and that part is ill."""
    health = parts.inventory.health
    entries = (health.entry(device.uuid) for device in parts.inventory.devices())
    ill = {part for entry in entries for part, facts in entry.parts.items() if facts.health in OUT_OF_SERVICE}
    found: dict[AllocationId, frozenset[int]] = {}
    for keeping in parts.ledgers.opened() if ill else ():
        places = frozenset(i for i, uuid in enumerate(keeping.limits.uuids) if uuid in ill)
        if places:
            found[keeping.limits.allocation] = places
    return found


def snapshot(
    parts: NodeParts,
    node: NodeName,
    *,
    processes: bool,
    pids: bool = False,
    only: Collection[AllocationId] | None = None,
) -> NodeSnapshot:
    """The whole node. What is held is of one moment; figures and processes are looked up after it, of ``only`` those.

    Args:
        pids: look up no more of processes than their numbers, which takes a fraction of the time.
    """
    with parts.lock:
        found, records = devices(parts), parts.allocations.records()
    if only is not None:
        records = [record for record in records if record.id in only]
    return NodeSnapshot(
        node=node,
        devices=found,
        allocations=tuple(_allocation(parts, record, processes=processes, pids=pids) for record in records),
        membership=parts.membership.form,
        slots=parts.slots.form,
    )


def _device(parts: NodeParts, device: Device, held: DeviceHeld) -> DeviceSnapshot:
    return DeviceSnapshot(
        device=device,
        mode=held.mode,
        held=held.slices,
        allocations=held.allocations,
        reading=parts.inventory.reading(device.uuid),
        cause=parts.inventory.health.cause(device.uuid),
        orphans=tuple(parts.allocations.orphaned(device.uuid)),
        strangers=parts.truth.strangers(device.uuid),
        drained=parts.truth.policy is not StrangerPolicy.TELL,
    )


def _tenants(record: AllocationRecord) -> tuple[Process, ...]:
    """The tenant's own program, where it is no member because a worker is; who keeps a slice for others is none."""
    mode = SHARING_MODES.get(record.placement.mode)
    if mode is None or mode.isolation is not Isolation.BROKERED or record.request.standing:
        return ()
    asker = Process(pid=record.client_pid, start_time=record.client_start_time)
    return (asker,) if alive(asker) else ()


def _allocation(parts: NodeParts, record: AllocationRecord, *, processes: bool, pids: bool) -> AllocationSnapshot:
    found = (*_tenants(record), *parts.membership.processes(record.id)) if processes else ()
    numbers: tuple[int, ...] = tuple(process.pid for process in found)
    if pids and not processes:
        numbers = (*(process.pid for process in _tenants(record)), *parts.membership.pids(record.id))
    return AllocationSnapshot(
        record=record,
        use=tuple(parts.ledgers.use(record)),
        processes=found,
        pids=numbers,
        ending=parts.allocations.ending(record.id) is not None,
    )


def is_anybody_leaving(parts: NodeParts) -> bool:
    """Return True if the programs of an allocation have ended, so that it will be released in a moment."""
    return any(
        record.state is AllocationState.RUNNING
        and not record.request.standing
        and not parts.membership.populated(record.id)
        for record in parts.allocations.records()
    )
