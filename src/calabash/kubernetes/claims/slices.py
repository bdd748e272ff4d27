"""Build the ResourceSlices of a node from its snapshot.

A device stays in its ResourceSlice even if it cannot be used now, and gets a taint that keeps new claims from it. It is
not removed, because the allocator counts only allocated devices that are in a slice: if an allocated device were
removed, the counters of its card would be free, and the card would be allocated again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from calabash.adapters.host.pci.devices import PciTree, pci_address
from calabash.adapters.kube.objects.claims import CounterSet, DeviceTaint, ResourcePool, ResourceSliceSpec, SliceDevice
from calabash.kubernetes.claims.device_entry import OfferedCard, counter_set, slice_device
from calabash.kubernetes.claims.device_names import (
    CORDONED,
    DRIVER,
    KEPT,
    OBSERVED,
    OTHER_API,
    STRANGER,
    UNHEALTHY,
    ClaimDevice,
    card_names,
    claim_devices,
)
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.mig import legal_starts, mig_state
from calabash.model.request import CUT_MODES, MIG_MODE, AllocationId, ModeName
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.sharing.exclusive import MODE as EXCLUSIVE
from calabash.sharing.registry import mode_of_device

DEVICES_MAX = 64  # limit of a slice whose devices consume counters
COUNTER_SETS_MAX = 8
COUNTERS_MAX = 32  # limit of a slice with counters and devices
_NAME_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """Features of the API server that decide about the form of ResourceSlices.

    Args:
        apart: True if counters must be in slices of their own (Kubernetes 1.35), False if they must be in the slices of
            the devices that consume them.
        counters: True if the API server stores shared counters.
        shares: True if it stores that a device allows multiple allocations.
        taints: True if it stores taints of devices.
    """

    apart: bool = True
    counters: bool = True
    shares: bool = True
    taints: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """Facts about a node that its ResourceSlices depend on and that are not in its snapshot.

    Args:
        driver_version, cuda_version: versions of the GPU driver and of CUDA; "" if unknown.
        claimed: allocations of the node that belong to claims.
        closed: the reason why the node makes no new grants; "" if it makes them.
        pcie_roots: PCIe root complex of each device for which it is known.
    """

    driver_version: str = ""
    cuda_version: str = ""
    claimed: Collection[AllocationId] = frozenset()
    closed: str = ""
    pcie_roots: Mapping[DeviceUuid, str] = field(default_factory=dict)


def pcie_roots(devices: Iterable[Device], tree: PciTree) -> dict[DeviceUuid, str]:
    """Return the PCIe root complex of each device for which the host's sysfs shows one."""
    roots = {device.uuid: tree.root_of(address) for device in devices if (address := pci_address(device.pci_bus_id))}
    return {uuid: root for uuid, root in roots.items() if root}


def slice_name(node: str, number: int) -> str:
    """Return the name of a node's ResourceSlice with a given number."""
    if len(node) > _NAME_MAX:
        node = f"{node[: _NAME_MAX - 9].rstrip('.-')}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"
    return f"{node}-{DRIVER}-{number}"


def slices_of(
    snapshot: NodeSnapshot, facts: SliceFacts, features: ServerFeatures = ServerFeatures()
) -> tuple[ResourceSliceSpec, ...]:
    """Return the ResourceSlices of the node, in generation 0 and in an order that does not change between calls.

    The result is empty if the node has no devices. Counters are included only if a card can be allocated in more than
    one mode, because kube-scheduler does more work for slices with counters.

    Args:
        snapshot: the devices and allocations of the node.
        facts: facts about the node that are not in the snapshot.
        features: features of the API server.
    """
    states = {state.device.uuid: state for state in snapshot.devices}
    cards = [state.device for state in snapshot.devices]
    names = card_names(cards)
    told = _facts(cards, names, facts)
    chosen: list[tuple[ClaimDevice, tuple[DeviceTaint, ...]]] = []
    for found in claim_devices(cards):
        state = states[found.device.uuid]
        if not _is_offered(found, state, features):
            continue
        taints = _taints(found, state, facts)
        if taints and not features.taints and not state.held:
            continue
        chosen.append((found, taints if features.taints else ()))
    ways = Counter(found.device.uuid for found, _ in chosen if found.mode != OBSERVED)
    counters = features.counters and any(count > 1 for count in ways.values())
    offered: dict[DeviceUuid, list[SliceDevice]] = {uuid: [] for uuid in sorted(names, key=names.__getitem__)}
    for found, taints in chosen:
        uuid = found.device.uuid
        offered[uuid].append(slice_device(found, told[uuid], taints=taints, counters=counters))
    groups = [
        (counter_set(names[uuid], states[uuid].device), tuple(devices)) for uuid, devices in offered.items() if devices
    ]
    parts = list(_apart(groups, counters=counters) if features.apart or not counters else _together(groups))
    return tuple(
        ResourceSliceSpec(
            driver=DRIVER,
            pool=ResourcePool(name=snapshot.node, resource_slice_count=len(parts)),
            node_name=snapshot.node,
            devices=devices,
            shared_counters=sets,
        )
        for sets, devices in parts
    )


def _facts(
    cards: Sequence[Device], names: Mapping[DeviceUuid, str], facts: SliceFacts
) -> dict[DeviceUuid, OfferedCard]:
    islands = _islands(cards, names)
    return {
        card.uuid: OfferedCard(
            name=names[card.uuid],
            island=islands.get(card.uuid, ""),
            pcie_root=facts.pcie_roots.get(card.uuid, ""),
            driver_version=facts.driver_version,
            cuda_version=facts.cuda_version,
        )
        for card in cards
    }


def _islands(cards: Sequence[Device], names: Mapping[DeviceUuid, str]) -> dict[DeviceUuid, str]:
    """Return the name of the NVLink group of each device that has NVLink.

    A group contains all devices that NVLink connects, directly or over other devices. The group has the name of its
    first device.
    """
    peers = {card.uuid: {p for p in card.nvlink_peers if p in names} for card in cards}
    for uuid, others in list(peers.items()):
        for other in others:
            peers[other].add(uuid)
    found: dict[DeviceUuid, str] = {}
    for uuid in sorted(names, key=names.__getitem__):
        reach = [uuid] if peers[uuid] and uuid not in found else []
        while reach:
            one = reach.pop()
            if one not in found:
                found[one] = names[uuid]
                reach += peers[one]
    return found


def _is_offered(found: ClaimDevice, state: DeviceSnapshot, features: ServerFeatures) -> bool:
    """Return True if a device must be in a slice.

    A device is left out if its card is pinned to another sharing mode, or if the API server lacks a feature for it.
    """
    if not features.counters:
        return found.mode == EXCLUSIVE.name and found.device.pinned in {"", found.mode}
    if found.shared and not features.shares:
        return False
    if found.mode == OBSERVED:
        return True
    pinned = found.device.pinned
    used = bool(state.held) and state.mode == found.mode
    return used or not pinned or mode_of_device(found.mode) == mode_of_device(ModeName(pinned))


def _taints(found: ClaimDevice, state: DeviceSnapshot, facts: SliceFacts) -> tuple[DeviceTaint, ...]:
    why: list[tuple[str, str]] = []
    device = state.device
    if found.mode == OBSERVED:  # an unhealthy card may need to be observed
        return ()
    if device.health is not Health.HEALTHY:
        why.append((UNHEALTHY, device.health.value))
    elif state.orphans:
        why.append((UNHEALTHY, "orphans"))
    if facts.closed:
        why.append((CORDONED, ""))
    if state.foreign_mib or (state.unmanaged and state.drained):
        why.append((STRANGER, ""))
    if any(name not in facts.claimed for name in state.allocations):
        why.append((OTHER_API, ""))
    if _is_barred(found):
        why.append((KEPT, ""))
    return tuple(DeviceTaint(key=key, value=value, effect="NoSchedule") for key, value in why)


def _is_barred(found: ClaimDevice) -> bool:
    """Return True if the device cannot be used because its card has a MIG instance that must not be destroyed."""
    device = found.device
    stays = [i for i in device.mig_instances if i.stays]
    if not stays or device.mig is None:
        return False
    if found.mode != MIG_MODE:
        return not (found.mode in CUT_MODES and device.pinned == found.mode)
    here = next((i for i in stays if i.place == (found.profile, found.start)), None)
    if here is not None:
        return here.foreign or bool(here.kept)
    profile = device.mig.profile(found.profile)
    state = mig_state(device.mig, (i.place for i in stays))
    return profile is None or found.start not in legal_starts(device.mig, profile, state)


_Group = tuple[CounterSet, tuple[SliceDevice, ...]]
_Part = tuple[tuple[CounterSet, ...], tuple[SliceDevice, ...]]


def _apart(groups: Sequence[_Group], *, counters: bool) -> Iterator[_Part]:
    """Yield slices with counters only, then slices with devices only.

    The devices of a card are in one slice if they fit, so that a change of the card's state changes one slice only.
    """
    sets = [one for one, _ in groups] if counters else []
    for at in range(0, len(sets), COUNTER_SETS_MAX):
        yield tuple(sets[at : at + COUNTER_SETS_MAX]), ()
    devices: list[SliceDevice] = []
    for _, more in groups:
        if devices and len(devices) + len(more) > DEVICES_MAX:
            yield (), tuple(devices)
            devices = []
        devices += more
        while len(devices) > DEVICES_MAX:
            yield (), tuple(devices[:DEVICES_MAX])
            devices = devices[DEVICES_MAX:]
    if devices:
        yield (), tuple(devices)


def _together(groups: Iterable[_Group]) -> Iterator[_Part]:
    """Yield slices with counters and devices together; each has as many cards as the limits of a slice permit."""
    sets: list[CounterSet] = []
    devices: list[SliceDevice] = []
    for one, more in groups:
        counters = sum(len(s.counters) for s in sets) + len(one.counters)
        if sets and (
            counters > COUNTERS_MAX or len(sets) == COUNTER_SETS_MAX or len(devices) + len(more) > DEVICES_MAX
        ):
            yield tuple(sets), tuple(devices)
            sets, devices = [], []
        sets.append(one)
        devices += more
    if sets:
        yield tuple(sets), tuple(devices)
