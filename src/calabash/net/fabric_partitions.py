"""Who is to be in which partition of a fabric for RDMA, and the steps that lead there. Pure.

Theory of operation. A partition is one tenant's, and a card's endpoints are in it while that tenant, and no other, has slices
of the card: an endpoint cannot be divided, so a card that several tenants share is in no partition. Steps are made of what is
wanted and what was *seen*, never of what was done before, so that they may fail, be half done or be lost at any point. What is
to leave leaves first; an endpoint joins only when it was seen in no other partition. Hence at no point is an endpoint in two
tenants' partitions at once, whatever fails.
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

PKEY_DEFAULT = 0x7FFF  # the partition of the fabric's managers, in which every port is
PKEY_MAX = 0x7FFF  # 15 bits; the 16th is the membership
_GUID = re.compile(r"[0-9a-f]{16}")
_VF = re.compile(r"[a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9_.]*/vf[0-9]{1,3}")
_NVLINK = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:]{0,63}")
_FORMS = {
    FabricPlane.INFINIBAND: (_GUID, "a port's GUID, 16 hexadecimal digits as in 0x506b4b0300a1b200"),
    FabricPlane.ROCE: (_VF, "NODE/INTERFACE/vfNUMBER as in h1/ens1f0/vf3"),
    FabricPlane.NVLINK: (_NVLINK, "the card's name on NVLink, letters, digits and -_.:"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPartition:
    """A partition of ours as it was seen; ``members`` are addresses."""

    tenant: str
    number: int
    members: frozenset[str] = frozenset()


class FabricStepKind(StrEnum):
    """In the order in which they are made."""

    RELEASE = "release"
    ATTACH = "attach"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricStep:
    """One order to a fabric's manager; ``number`` 0: the tenant has no partition there yet."""

    kind: FabricStepKind
    tenant: str
    number: int
    addresses: frozenset[str] = frozenset()


def read_address(plane: FabricPlane, text: str) -> str:
    """An endpoint's address in its one spelling. Raises CalabashError."""
    form, example = _FORMS[plane]
    small = text if plane is FabricPlane.NVLINK else text.lower()
    small = small.removeprefix("0x") if plane is FabricPlane.INFINIBAND else small
    if not form.fullmatch(small) or set(small) == {"0"}:
        raise CalabashError(f"{text[:80]!r} is no address on {plane}", reason=Reason.BAD_FILE, hint=f"write {example}")
    return small


def check_endpoints(endpoints: Iterable[FabricEndpoint]) -> tuple[FabricEndpoint, ...]:
    """In order. Raises CalabashError where two cards have one address: what one leaves, the other would lose."""
    found = tuple(sorted(set(endpoints)))
    owner: dict[tuple[FabricPlane, str], DeviceUuid] = {}
    for one in found:
        other = owner.setdefault((one.plane, one.address), one.device)
        if other != one.device:
            raise CalabashError(
                f"{one.address} on {one.plane} is of {other} and of {one.device}",
                reason=Reason.BAD_FILE,
                hint="name each address once, at the card that is nearest to it",
            )
    return found


def tenants_of(uses: Iterable[FabricUse]) -> dict[DeviceUuid, frozenset[str]]:
    """Who has slices of each card; those of no tenant are ``DEFAULT_TENANT``."""
    found: defaultdict[DeviceUuid, set[str]] = defaultdict(set)
    for use in uses:
        found[use.device].add(use.tenant or DEFAULT_TENANT)
    return {device: frozenset(tenants) for device, tenants in found.items()}


def memberships(
    endpoints: Iterable[FabricEndpoint], uses: Iterable[FabricUse], plane: FabricPlane
) -> dict[str, frozenset[str]]:
    """The addresses that are to be in each tenant's partition of that plane; tenants without any are left out."""
    holders = tenants_of(uses)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for one in endpoints:
        tenants = holders.get(one.device, frozenset())
        if one.plane is plane and len(tenants) == 1 and DEFAULT_TENANT not in tenants:
            (tenant,) = tenants
            found[tenant].add(one.address)
    return {tenant: frozenset(addresses) for tenant, addresses in found.items()}


def fabric_steps(wanted: Mapping[str, frozenset[str]], seen: Collection[FabricPartition]) -> tuple[FabricStep, ...]:
    """What leads from what was seen towards what is wanted; nothing when that is the same.

    Of two partitions of one tenant, which a lost answer may leave, the one with the smaller number stays.
    """
    ordered = sorted(seen, key=lambda partition: partition.number)
    kept: dict[str, FabricPartition] = {}
    for partition in ordered:
        kept.setdefault(partition.tenant, partition)
    places: defaultdict[str, set[int]] = defaultdict(set)
    for partition in ordered:
        for address in partition.members:
            places[address].add(partition.number)
    found = []
    for partition in ordered:
        here = wanted.get(partition.tenant, frozenset()) if kept[partition.tenant] is partition else frozenset()
        found += _step(FabricStepKind.RELEASE, partition, partition.members - here)
    for tenant, addresses in sorted(wanted.items()):
        own = kept.get(tenant, FabricPartition(tenant=tenant, number=0))
        found += _step(
            FabricStepKind.ATTACH, own, frozenset(a for a in addresses - own.members if not places[a] - {own.number})
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
    """The lowest that nobody has. Raises CalabashError where all are taken."""
    number = next((n for n in range(first, last + 1) if n not in taken), None)
    if number is None:
        raise CalabashError(
            f"all {last - first + 1} partitions from {first:#x} to {last:#x} are taken",
            reason=Reason.NO_CAPACITY,
            hint="give more numbers to Calabash (first_number, last_number), or end tenants' work",
        )
    return number


def may_have(tenant: str, standing: Collection[str] | None) -> bool:
    """Whether a card can be granted to that tenant: it was seen in nobody else's partition. Not known is no."""
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
    """What is to be said of each card of that plane; ``seen`` None: its manager did not answer, ``problem`` why."""
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
        quiet = state in {FabricState.MEMBER, FabricState.CLEAR, FabricState.SHARED, FabricState.NO_TENANT}
        found.append(
            FabricCondition(
                plane=plane,
                device=device,
                state=state,
                standing=standing,
                tenant=tenant if tenant != DEFAULT_TENANT else "",
                number=number,
                message="" if quiet else problem or _hindrance(state, standing, tenant),
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


def _hindrance(state: FabricState, standing: tuple[str, ...] | None, tenant: str) -> str:
    if state is FabricState.LEAVING:
        others = ", ".join(t for t in standing or () if t != tenant)
        return f"it still is in the partition of {others}"
    if state is FabricState.EXPOSED:
        return "a partition that is not Calabash's has it as a full member"
    return "it is not in its tenant's partition yet" if state is FabricState.JOINING else "its manager does not answer"
