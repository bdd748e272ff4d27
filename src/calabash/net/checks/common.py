"""What checks of all kinds have in common: things that must exist, that cannot change, and ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from typing import TypeVar

from calabash.model.addresses import Network
from calabash.model.errors import CalabashError, Reason
from calabash.model.mentions import Mentioned, mention
from calabash.model.network import KINDS, PATH_PARTS, NetworkKind, NetworkObject, Vpc, kind_of
from calabash.net.addresses.derived import TRANSIT_4, TRANSIT_6
from calabash.net.addresses.ranges import overlaps
from calabash.net.objects.collection import NetworkObjects, VpcObjects

T = TypeVar("T", bound=NetworkObject)
NUMBER_MAX = 65535
PLATFORM_LABEL = "x-"  # begins names of what the platform makes inside a VPC
NOUNS: dict[NetworkKind, str] = {
    NetworkKind.VPC: "VPC",
    NetworkKind.SECURITY_GROUP: "security group",
    NetworkKind.EIP: "outside address",
    NetworkKind.NAT_RULE: "NAT rule",
    NetworkKind.LOAD_BALANCER: "load balancer",
    NetworkKind.PEERING: "peering",
    NetworkKind.DNS_RECORD: "DNS record",
    NetworkKind.QOS_POLICY: "QoS policy",
}
_UNUSABLE: tuple[Network, ...] = (
    *(ip_network(text) for text in ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4")),
    *(ip_network(text) for text in ("::/8", "fe80::/10", "ff00::/8")),
    TRANSIT_4,
    TRANSIT_6,
)


def is_platform(name: str) -> bool:
    """Whether only the platform makes and deletes what is called so."""
    return name.rsplit("/", 1)[-1].startswith(PLATFORM_LABEL)


def titled(item: NetworkObject) -> str:
    """``port red/a/web1``: how messages name an object."""
    return called(kind_of(item), item.name)


def mentioned(item: NetworkObject) -> str:
    """``titled`` for an object that may be another tenant's."""
    return called(kind_of(item), mention(Mentioned.NETWORK, item.name))


def called(kind: NetworkKind, name: str) -> str:
    return f"{NOUNS.get(kind, kind.value)} {name}"


def conflict(message: str, hint: str = "") -> CalabashError:
    return CalabashError(message, reason=Reason.CONFLICT, hint=hint)


def known(objects: VpcObjects, of: type[T], name: str, whose: str) -> T:
    """The object of this VPC that ``whose`` names. Raises CalabashError where there is none."""
    found = objects.all(of).get(name)
    if found is None:
        kind = KINDS[of]
        example = "/".join((*("VPC", "SUBNET")[: PATH_PARTS[kind] - 1], "NAME"))
        raise CalabashError(
            f"{whose}: there is no {called(kind, repr(name)[:200])} in its VPC",
            reason=Reason.NOT_FOUND,
            hint=f"names are whole, {example}; `calabash {kind.value} list` lists them",
        )
    return found


def check_fixed(item: NetworkObject, old: NetworkObject | None, *fields: str) -> None:
    """Raises CalabashError where one of ``fields`` is not as it was."""
    for field in fields if old is not None else ():
        was, now = getattr(old, field), getattr(item, field)
        if was != now:
            raise conflict(
                f"{titled(item)}: {field} cannot change from {_shown(was)} to {_shown(now)}",
                hint="delete it and create it anew",
            )


def check_usable(network: Network, whose: str) -> None:
    """Raises CalabashError for ranges of one machine, one link, groups, or of the platform."""
    for unusable in _UNUSABLE:
        if overlaps(network, unusable):
            raise CalabashError(
                f"{whose}: {network} overlaps {unusable}, which no network of a tenant can use",
                hint="use a private range, such as 10.0.0.0/16 or fd00::/56",
            )


def check_between(number: int, least: int, most: int, what: str) -> None:
    if not least <= number <= most:
        raise CalabashError(f"{what}: {number} is not between {least} and {most}")


def check_distinct(names: Iterable[object], what: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise CalabashError(f"{what}: {name} stands there twice")
        seen.add(name)


def listed(networks: Iterable[Network]) -> str:
    return ", ".join(map(str, networks))


def owner(networks: NetworkObjects, vpc: str) -> str:
    """The tenant of a VPC that exists."""
    (found,) = networks.of_vpc(vpc).all(Vpc).values()
    return found.tenant


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"
