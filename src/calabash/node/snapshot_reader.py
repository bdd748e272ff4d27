"""Read the components of a node agent into immutable snapshots."""

from __future__ import annotations

from collections.abc import Collection

from calabash.adapters.host.processes import Process, alive
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import OUT_OF_SERVICE, Device, NodeName
from calabash.model.request import AllocationId, Isolation
from calabash.node.allocations.table import DeviceHeld
from calabash.node.processes.unmanaged import UnmanagedPolicy
from calabash.node.snapshot import AllocationSnapshot, DeviceSnapshot, NodeSnapshot
from calabash.node.wiring import NodeParts
from calabash.sharing.registry import SHARING_MODES


def devices(parts: NodeParts) -> tuple[DeviceSnapshot, ...]:
    """Return all devices with the slices held of them, as of one moment."""
    with parts.lock:
        held = parts.allocations.by_device()
        return tuple(
            _device(parts, device, held.get(device.uuid, DeviceHeld())) for device in parts.inventory.devices()
        )


def unhealthy_partitions(parts: NodeParts) -> dict[AllocationId, frozenset[int]]:
    """Return by allocation the indexes of the slices whose partition, such as a MIG device, is unhealthy.

    The card of the partition may be healthy.
    """
    health = parts.inventory.health
    entries = (health.entry(device.uuid) for device in parts.inventory.devices())
    unhealthy = {part for entry in entries for part, facts in entry.parts.items() if facts.health in OUT_OF_SERVICE}
    found: dict[AllocationId, frozenset[int]] = {}
    for keeping in parts.usage_tracker.open_slots() if unhealthy else ():
        places = frozenset(i for i, uuid in enumerate(keeping.limits.uuids) if uuid in unhealthy)
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
    """Return a snapshot of the node.

    The set of held allocations is that of one moment. Usage and processes are read after that moment.

    Args:
        processes: include the member processes of each allocation.
        pids: include the pids of processes only, which takes a fraction of the time.
        only: include only these allocations; None: all.
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
        unmanaged=parts.audit.unmanaged(device.uuid),
        drained=parts.audit.policy is not UnmanagedPolicy.TELL,
    )


def _tenants(record: AllocationRecord) -> tuple[Process, ...]:
    """Return the process of the tenant's program of an allocation in mode brokered, if it is alive.

    It is no member process: the members of such an allocation are workers. Empty for standing allocations and for
    other modes.
    """
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
        use=tuple(parts.usage_tracker.use(record)),
        processes=found,
        pids=numbers,
        ending=parts.allocations.ending(record.id) is not None,
    )


def has_ended_programs(parts: NodeParts) -> bool:
    """Return True if the programs of an allocation have ended, so that it will be released in a moment."""
    return any(
        record.state is AllocationState.RUNNING
        and not record.request.standing
        and not parts.membership.populated(record.id)
        for record in parts.allocations.records()
    )
