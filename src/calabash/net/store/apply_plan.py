"""Apply manifests: order the objects to put and to remove, carry them out on a store, and describe the changes.

To *put* an object means to create or update it. Objects are put in the order in which their kinds depend on each other,
and removed in the reverse order. An object that cannot be put or removed yet is tried again after the others, up to
PASSES_MAX times. The store is an immutable value, so nothing has changed if an object is refused in the end.

Rules of two security groups may refer to each other. New groups are therefore created without their rules first, and
groups to be removed are emptied first.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind, NetworkObject, SecurityGroup, kind_of
from calabash.net.objects.specs import encode
from calabash.net.store.networks import Networks

PASSES_MAX = 8
_ORDER = {
    kind: place
    for place, kind in enumerate(
        (
            NetworkKind.VPC,
            NetworkKind.UPLINK,
            NetworkKind.SUBNET,
            NetworkKind.QOS_POLICY,
            NetworkKind.SECURITY_GROUP,
            NetworkKind.PORT,
            NetworkKind.GATEWAY,
            NetworkKind.EIP,
            NetworkKind.NAT_RULE,
            NetworkKind.LOAD_BALANCER,
            NetworkKind.PEERING,
            NetworkKind.SERVICE_ENDPOINT,
            NetworkKind.ROUTE,
            NetworkKind.DEDICATED_LINE,
            NetworkKind.DNS_RECORD,
        )
    )
}

Key = tuple[NetworkKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredObject:
    """Desired state of an object in a file.

    Args:
        place: position of the object in the file, for messages.
        item: the object as the file describes it.
        early: True for a security group without its rules, which is put before all groups with rules.
    """

    place: str
    item: NetworkObject
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChange:
    """Change of one object. ``before`` is None for a created object, and ``after`` is None for a removed one."""

    kind: NetworkKind
    name: str
    before: NetworkObject | None
    after: NetworkObject | None

    @property
    def word(self) -> str:
        """``created``, ``changed``, ``removed`` or ``unchanged``."""
        if self.before is None or self.after is None:
            return "created" if self.before is None else "removed"
        return "unchanged" if self.before == self.after else "changed"


def apply_objects(
    networks: Networks, wanted: Sequence[DesiredObject], unwanted: Iterable[Key], *, platform: bool = False
) -> Networks:
    """Return the store with all wanted objects and without the unwanted ones.

    Args:
        platform: permits names reserved for the platform.

    Raises:
        CalabashError: an object is refused; the message names its document.
    """
    _check_duplicates(wanted)
    first = sorted(
        [*_groups_without_rules(networks, wanted), *wanted], key=lambda one: (_ORDER[kind_of(one.item)], not one.early)
    )
    last = sorted(unwanted, key=lambda key: -_ORDER[key[0]])
    for kind, name in last:
        if kind is NetworkKind.SECURITY_GROUP:
            networks, _ = networks.put(SecurityGroup(name=name), platform=platform)
    error: CalabashError | None = None
    for _ in range(PASSES_MAX):
        networks, first, put_error = _put(networks, first, platform=platform)
        networks, last, remove_error = _removed(networks, last, platform=platform)
        error = put_error or remove_error
        if error is None:
            return networks
    assert error is not None
    raise error


def changes_between(before: Networks, after: Networks, wanted: Iterable[DesiredObject]) -> list[NetworkChange]:
    """Return the changes from ``before`` to ``after`` in the order in which they are made.

    Wanted objects that are unchanged are included, so that a user sees each object of the file.
    """
    changed, removed = after.changes_since(before)
    named = {(kind_of(item), item.name) for item in changed} | {(kind_of(one.item), one.item.name) for one in wanted}
    keys = [
        *sorted(named, key=lambda key: (_ORDER[key[0]], key[1])),
        *sorted(((kind_of(item), item.name) for item in removed), key=lambda key: (-_ORDER[key[0]], key[1])),
    ]
    return [
        NetworkChange(kind=kind, name=name, before=before.get(kind, name), after=after.get(kind, name))
        for kind, name in keys
    ]


def difference_lines(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    """Return lines for the fields that differ: ``- `` with the value before the change, ``+ `` with that after it."""
    old, new = ([*_field_lines(spec, "")] if spec is not None else [] for spec in (before, after))
    return [line for line in difflib.ndiff(old, new) if line.startswith(("- ", "+ "))]


def _field_lines(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _field_lines(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
        for one in value:
            fields = ", ".join(
                f"{name}: {_value_text(inner)}" for name, inner in one.items() if inner not in ("", None)
            )
            yield f"{place}: {fields}"
    else:
        yield f"{place}: {_value_text(value)}"


def _value_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value_text(one) for one in value) + "]"
    return str(value) if value != "" else '""'


def _check_duplicates(wanted: Iterable[DesiredObject]) -> None:
    seen: dict[Key, str] = {}
    for one in wanted:
        key = (kind_of(one.item), one.item.name)
        if key in seen:
            raise CalabashError(
                f"{one.place}: {key[0]} {key[1]} is already defined in {seen[key]}", hint="define each object once"
            )
        seen[key] = one.place


def _groups_without_rules(networks: Networks, wanted: Iterable[DesiredObject]) -> Iterator[DesiredObject]:
    for one in wanted:
        if isinstance(one.item, SecurityGroup) and networks.find(SecurityGroup, one.item.name) is None:
            yield DesiredObject(place=one.place, item=SecurityGroup(name=one.item.name), early=True)


def _put(
    networks: Networks, wanted: Sequence[DesiredObject], *, platform: bool
) -> tuple[Networks, list[DesiredObject], CalabashError | None]:
    """Put all objects that can be put now; return the new store, the remaining objects, and the first error or None."""
    left: list[DesiredObject] = []
    first: CalabashError | None = None
    ordered = [one for one in wanted if not getattr(one.item, "virtual_parents", ())]
    for one in (*ordered, *(one for one in wanted if getattr(one.item, "virtual_parents", ()))):
        try:
            networks, _ = networks.put(one.item, platform=platform)
        except CalabashError as error:
            if one.early:
                continue
            left.append(one)
            refused = CalabashError(f"{one.place}: {error.message}", reason=error.reason, hint=error.hint)
            first = first or refused
    return networks, left, first


def _removed(
    networks: Networks, unwanted: Sequence[Key], *, platform: bool
) -> tuple[Networks, list[Key], CalabashError | None]:
    left: list[Key] = []
    first: CalabashError | None = None
    for kind, name in unwanted:
        try:
            networks = networks.remove(kind, name, platform=platform)
        except CalabashError as error:
            left.append((kind, name))
            first = first or CalabashError(
                f"cannot remove {kind} {name}: {error.message}", reason=error.reason, hint=error.hint
            )
    return networks, left, first


def specs_of(change: NetworkChange) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the specs before and after the change in the form of the API."""
    before, after = (encode(item) if item is not None else None for item in (change.before, change.after))
    return before, after
