"""Helpers of the checks: names of objects in messages, required objects, immutable fields, ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from typing import TypeVar

from calabash.model.addresses import Network
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, NetworkName, Text
from calabash.model.network import KINDS, PATH_PARTS, NetworkKind, NetworkObject, kind_of
from calabash.net.addresses.derived import TRANSIT_4, TRANSIT_6
from calabash.net.addresses.ranges import overlaps
from calabash.net.objects.collection import VpcObjects

T = TypeVar("T", bound=NetworkObject)
NUMBER_MAX = 65535
PLATFORM_LABEL = "x-"  # prefix of the labels of objects that the platform creates in a VPC
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


def is_reserved_name(name: str) -> bool:
    """Return True if the name is reserved for objects of the platform."""
    return name.rsplit("/", 1)[-1].startswith(PLATFORM_LABEL)


def describe(item: NetworkObject) -> str:
    """Return the kind and name of an object for messages: ``port red/a/web1``."""
    return describe_kind(kind_of(item), item.name)


def describe_redactable(item: NetworkObject) -> Message:
    """Return the kind and name of an object for messages; the name is redacted for users who may not see the object."""
    kind = kind_of(item)
    return Message("{kind} {name}", kind=NOUNS.get(kind, kind.value), name=NetworkName(item.name))


def describe_kind(kind: NetworkKind, name: str) -> str:
    return f"{NOUNS.get(kind, kind.value)} {name}"


def conflict_error(message: Text, hint: str = "") -> CalabashError:
    return CalabashError(message, reason=Reason.CONFLICT, hint=hint)


def require_object(objects: VpcObjects, object_type: type[T], name: str, subject: str) -> T:
    """Return an object of the VPC by its name.

    Args:
        object_type: class of the object.
        subject: description of another object, which refers to this one, for the error message.

    Raises:
        CalabashError: NOT_FOUND.
    """
    found = objects.all(object_type).get(name)
    if found is None:
        kind = KINDS[object_type]
        example = "/".join((*("VPC", "SUBNET")[: PATH_PARTS[kind] - 1], "NAME"))
        raise CalabashError(
            f"{subject}: there is no {describe_kind(kind, repr(name)[:200])} in its VPC",
            reason=Reason.NOT_FOUND,
            hint=f"use the full name, {example}; `calabash net {kind.value} list` lists them",
        )
    return found


def check_immutable(item: NetworkObject, old: NetworkObject | None, *fields: str) -> None:
    """Raise CalabashError if one of ``fields`` differs from the current version."""
    for field in fields if old is not None else ():
        was, now = getattr(old, field), getattr(item, field)
        if was != now:
            raise conflict_error(
                f"{describe(item)}: {field} cannot change from {_value_text(was)} to {_value_text(now)}",
                hint="delete the object and create it again",
            )


def check_allowed_range(network: Network, subject: str) -> None:
    """Raise CalabashError if the range overlaps a loopback, link-local, multicast, reserved or transit range."""
    for unusable in _UNUSABLE:
        if overlaps(network, unusable):
            raise CalabashError(
                f"{subject}: {network} overlaps {unusable}, which is reserved",
                hint="use a private range, such as 10.0.0.0/16 or fd00::/56",
            )


def check_between(number: int, least: int, most: int, what: str) -> None:
    """Raise CalabashError unless ``least <= number <= most``; ``what`` names the number."""
    if not least <= number <= most:
        raise CalabashError(f"{what}: {number} is not between {least} and {most}")


def check_distinct(names: Iterable[object], what: str) -> None:
    """Raise CalabashError if a name is listed twice; ``what`` names the list."""
    seen = set()
    for name in names:
        if name in seen:
            raise CalabashError(f"{what}: {name} is listed twice")
        seen.add(name)


def join_ranges(networks: Iterable[Network]) -> str:
    return ", ".join(map(str, networks))


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"
