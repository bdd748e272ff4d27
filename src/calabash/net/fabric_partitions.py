"""Partitions of RDMA and NVLink fabrics: the endpoints of each tenant's partition, and the steps that establish them.

Theory of operation. A fabric manager, such as UFM, permits traffic only between endpoints of the same partition. An
endpoint is the address of a device on a fabric, and a *plane* is the kind of a fabric (``FabricPlane``). A partition
belongs to one tenant. It contains the endpoints of the devices of which this tenant, and no other, has slices. An
endpoint cannot be divided, so a device that several tenants share is in no partition.

Steps are computed from the desired and the *observed* members, never from earlier steps. So a step may fail, be done in
part, or be lost, and is then repeated. Members that have to leave are released first. An endpoint is attached only
after it was observed in no other partition. Hence an endpoint is never in the partitions of two tenants at once,
whatever fails.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.fabric import FabricCondition, FabricEndpoint, FabricPlane, FabricState, FabricUse
from calabash.model.request import DEFAULT_TENANT

PKEY_DEFAULT = 0x7FFF  # the management partition, which contains every port
_GUID = re.compile(r"[0-9a-f]{16}")
_VF = re.compile(r"[a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9_.]*/vf[0-9]{1,3}")
_NVLINK = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:]{0,63}")
_FORMS = {
    FabricPlane.INFINIBAND: (_GUID, "a port's GUID, 16 hexadecimal digits as in 0x506b4b0300a1b200"),
    FabricPlane.ROCE: (_VF, "NODE/INTERFACE/vfNUMBER as in h1/ens1f0/vf3"),
    FabricPlane.NVLINK: (_NVLINK, "the NVLink name of the device, letters, digits and -_.:"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPartition:
    """Observed partition of a tenant.

    Args:
        number: number of the partition, for InfiniBand the P_Key.
        members: addresses of its endpoints.
    """

    tenant: str
    number: int
    members: frozenset[str] = frozenset()


class FabricStepKind(StrEnum):
    """Kinds of steps, in the order in which they are carried out.

    RELEASE removes endpoints from a partition, ATTACH adds endpoints, DROP deletes an empty partition.
    """

    RELEASE = "release"
    ATTACH = "attach"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricStep:
    """One request to a fabric manager.

    Args:
        number: number of the partition; 0 if the tenant has no partition yet, so that one must be created.
        addresses: endpoints to be released or attached; empty for DROP.
    """

    kind: FabricStepKind
    tenant: str
    number: int
    addresses: frozenset[str] = frozenset()


def read_address(plane: FabricPlane, text: str) -> str:
    """Return the canonical form of an endpoint address. Raises CalabashError if it is invalid."""
    form, example = _FORMS[plane]
    small = text if plane is FabricPlane.NVLINK else text.lower()
    small = small.removeprefix("0x") if plane is FabricPlane.INFINIBAND else small
    if not form.fullmatch(small) or set(small) == {"0"}:
        raise CalabashError(
            f"{text[:80]!r} is not an address on {plane}", reason=Reason.BAD_FILE, hint=f"write {example}"
        )
    return small


def check_endpoints(endpoints: Iterable[FabricEndpoint]) -> tuple[FabricEndpoint, ...]:
    """Return the endpoints sorted and without duplicates. Raises CalabashError if two devices have the same address."""
    found = tuple(sorted(set(endpoints)))
    owner: dict[tuple[FabricPlane, str], DeviceUuid] = {}
    for one in found:
        other = owner.setdefault((one.plane, one.address), one.device)
        if other != one.device:
            raise CalabashError(
                f"{one.address} on {one.plane} belongs to both {other} and {one.device}",
                reason=Reason.BAD_FILE,
                hint="list each address once, for the device that is nearest to it",
            )
    return found


def tenants_of(uses: Iterable[FabricUse]) -> dict[DeviceUuid, frozenset[str]]:
    """Return the tenants that have slices of each device; ``DEFAULT_TENANT`` stands for no tenant."""
    found: defaultdict[DeviceUuid, set[str]] = defaultdict(set)
    for use in uses:
        found[use.device].add(use.tenant or DEFAULT_TENANT)
    return {device: frozenset(tenants) for device, tenants in found.items()}


def memberships(
    endpoints: Iterable[FabricEndpoint], uses: Iterable[FabricUse], plane: FabricPlane
) -> dict[str, frozenset[str]]:
    """Return the desired members of each tenant's partition on one plane; tenants without members are left out."""
    holders = tenants_of(uses)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for one in endpoints:
        tenants = holders.get(one.device, frozenset())
        if one.plane is plane and len(tenants) == 1 and DEFAULT_TENANT not in tenants:
            (tenant,) = tenants
            found[tenant].add(one.address)
    return {tenant: frozenset(addresses) for tenant, addresses in found.items()}


def fabric_steps(wanted: Mapping[str, frozenset[str]], seen: Collection[FabricPartition]) -> tuple[FabricStep, ...]:
    """Return the steps that are possible now towards the desired members; empty if these are observed already.

    If a tenant has two partitions, which can happen when a reply was lost, the one with the smaller number is kept.

    Args:
        wanted: desired endpoint addresses of each tenant.
        seen: the observed partitions.
    """
    ordered = sorted(seen, key=lambda partition: partition.number)
    kept: dict[str, FabricPartition] = {}
    for partition in ordered:
        kept.setdefault(partition.tenant, partition)
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for partition in ordered:
        for address in partition.members:
            numbers[address].add(partition.number)
    found = []
    for partition in ordered:
        desired = wanted.get(partition.tenant, frozenset()) if kept[partition.tenant] is partition else frozenset()
        found += _step(FabricStepKind.RELEASE, partition, partition.members - desired)
    for tenant, addresses in sorted(wanted.items()):
        own = kept.get(tenant, FabricPartition(tenant=tenant, number=0))
        found += _step(
            FabricStepKind.ATTACH, own, frozenset(a for a in addresses - own.members if not numbers[a] - {own.number})
        )
    for partition in ordered:
        unwanted = kept[partition.tenant] is not partition or not wanted.get(partition.tenant)
        if unwanted and not partition.members:
            found.append(FabricStep(kind=FabricStepKind.DROP, tenant=partition.tenant, number=partition.number))
    return tuple(found)


def _step(kind: FabricStepKind, partition: FabricPartition, addresses: frozenset[str]) -> list[FabricStep]:
    if not addresses:
        return []
    return [FabricStep(kind=kind, tenant=partition.tenant, number=partition.number, addresses=addresses)]


def free_number(first: int, last: int, taken: Collection[int]) -> int:
    """Return the smallest number from ``first`` to ``last`` that is not taken. Raises CalabashError(NO_CAPACITY)."""
    number = next((n for n in range(first, last + 1) if n not in taken), None)
    if number is None:
        raise CalabashError(
            f"all {last - first + 1} partitions from {first:#x} to {last:#x} are taken",
            reason=Reason.NO_CAPACITY,
            hint="widen the range of numbers (first_number, last_number), or stop work of some tenants",
        )
    return number


def may_grant(tenant: str, standing: Collection[str] | None) -> bool:
    """Return True if a device may be granted to the tenant, because the device is in no other tenant's partition.

    Args:
        tenant: the tenant; "" for a request without one.
        standing: tenants in whose partitions the device was observed. If they are unknown (None), the result is False.
    """
    return standing is not None and set(standing) <= {tenant or DEFAULT_TENANT}


def conditions(
    endpoints: Iterable[FabricEndpoint],
    uses: Iterable[FabricUse],
    plane: FabricPlane,
    seen: Collection[FabricPartition] | None,
    *,
    exposed: Collection[str] = (),
    problem: str = "",
) -> tuple[FabricCondition, ...]:
    """Return the condition of each device on one plane.

    Args:
        endpoints: endpoints of all devices, of any plane.
        uses: the tenants that use each device.
        seen: the observed partitions; None if the fabric manager did not answer.
        exposed: addresses that are full members of a partition which Calabash does not manage.
        problem: the error of the fabric manager; "" for none.
    """
    holders = tenants_of(uses)
    cards: defaultdict[DeviceUuid, set[str]] = defaultdict(set)
    for one in endpoints:
        if one.plane is plane:
            cards[one.device].add(one.address)
    found = []
    for device, addresses in sorted(cards.items()):
        tenants = holders.get(device, frozenset())
        tenant = next(iter(tenants)) if len(tenants) == 1 else ""
        if seen is None:
            state, standing, number = FabricState.UNKNOWN, None, 0
        else:
            standing = tuple(sorted({p.tenant for p in seen if p.members & addresses}))
            number = next((p.number for p in seen if p.tenant == tenant), 0)
            inside = {a for p in seen if p.tenant == tenant for a in p.members & addresses}
            state = _state(tenants, standing, whole=inside == addresses, exposed=bool(addresses & set(exposed)))
        normal = state in {FabricState.MEMBER, FabricState.CLEAR, FabricState.SHARED, FabricState.NO_TENANT}
        found.append(
            FabricCondition(
                plane=plane,
                device=device,
                state=state,
                standing=standing,
                tenant=tenant if tenant != DEFAULT_TENANT else "",
                number=number,
                message="" if normal else problem or _state_message(state, standing, tenant),
            )
        )
    return tuple(found)


def _state(tenants: frozenset[str], standing: tuple[str, ...], *, whole: bool, exposed: bool) -> FabricState:
    belongs = len(tenants) == 1 and DEFAULT_TENANT not in tenants
    if set(standing) - (tenants if belongs else set()):
        return FabricState.LEAVING
    if exposed:
        return FabricState.EXPOSED
    if belongs:
        return FabricState.MEMBER if whole else FabricState.JOINING
    if len(tenants) > 1:
        return FabricState.SHARED
    return FabricState.NO_TENANT if tenants else FabricState.CLEAR


def _state_message(state: FabricState, standing: tuple[str, ...] | None, tenant: str) -> str:
    if state is FabricState.LEAVING:
        others = ", ".join(t for t in standing or () if t != tenant)
        return f"the device is still in the partition of {others}"
    if state is FabricState.EXPOSED:
        return "a partition that Calabash does not manage has the device as a full member"
    if state is FabricState.JOINING:
        return "the device is not in the partition of its tenant yet"
    return "the fabric manager does not answer"
