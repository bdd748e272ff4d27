"""From the networks that there are to those that a file wants: which objects are put and removed, in which order.

Theory of operation. Objects are put in the order in which kinds need each other, and what cannot be put yet is tried again
after the others, a few times at most; so are removals, the other way round. All of it is done to a value: where one object
cannot be, the whole is refused and nothing has happened. Groups come and go without their rules, as rules of two groups may
name each other.
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
class WantedObject:
    """An object of a file, and where in it, for messages. ``early``: a part of it that only makes others possible."""

    place: str
    item: NetworkObject
    early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChange:
    """What becomes of an object; before and after, None where there is none."""

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


def carried_out(
    networks: Networks, wanted: Sequence[WantedObject], unwanted: Iterable[Key], *, platform: bool = False
) -> Networks:
    """The networks with all that is wanted and nothing that is not. Raises CalabashError that says which document."""
    _check_once(wanted)
    first = sorted(
        [*_without_rules(networks, wanted), *wanted], key=lambda one: (_ORDER[kind_of(one.item)], not one.early)
    )
    last = sorted(unwanted, key=lambda key: -_ORDER[key[0]])
    for kind, name in last:
        if kind is NetworkKind.SECURITY_GROUP:
            networks, _ = networks.put(SecurityGroup(name=name), platform=platform)
    error: CalabashError | None = None
    for _ in range(PASSES_MAX):
        networks, first, refused = _put(networks, first, platform=platform)
        networks, last, kept = _removed(networks, last, platform=platform)
        error = refused or kept
        if error is None:
            return networks
    assert error is not None
    raise error


def changes_between(before: Networks, after: Networks, wanted: Iterable[WantedObject]) -> list[NetworkChange]:
    """What that came to, in the order in which it is made; what is wanted and was so already among it."""
    put, gone = after.changes_since(before)
    named = {(kind_of(item), item.name) for item in put} | {(kind_of(one.item), one.item.name) for one in wanted}
    keys = [
        *sorted(named, key=lambda key: (_ORDER[key[0]], key[1])),
        *sorted(((kind_of(item), item.name) for item in gone), key=lambda key: (-_ORDER[key[0]], key[1])),
    ]
    return [
        NetworkChange(kind=kind, name=name, before=before.get(kind, name), after=after.get(kind, name))
        for kind, name in keys
    ]


def difference_lines(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    """Fields that differ, one a line: ``- `` as it is, ``+ `` as it would be."""
    old, new = ([*_flat(spec, "")] if spec is not None else [] for spec in (before, after))
    return [line for line in difflib.ndiff(old, new) if line.startswith(("- ", "+ "))]


def _flat(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
        for one in value:
            fields = ", ".join(f"{name}: {_word(inner)}" for name, inner in one.items() if inner not in ("", None))
            yield f"{place}: {fields}"
    else:
        yield f"{place}: {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_word(one) for one in value) + "]"
    return str(value) if value != "" else '""'


def _check_once(wanted: Iterable[WantedObject]) -> None:
    seen: dict[Key, str] = {}
    for one in wanted:
        key = (kind_of(one.item), one.item.name)
        if key in seen:
            raise CalabashError(
                f"{one.place}: {key[0]} {key[1]} is in {seen[key]} already", hint="say each object once"
            )
        seen[key] = one.place


def _without_rules(networks: Networks, wanted: Iterable[WantedObject]) -> Iterator[WantedObject]:
    for one in wanted:
        if isinstance(one.item, SecurityGroup) and networks.find(SecurityGroup, one.item.name) is None:
            yield WantedObject(place=one.place, item=SecurityGroup(name=one.item.name), early=True)


def _put(
    networks: Networks, wanted: Sequence[WantedObject], *, platform: bool
) -> tuple[Networks, list[WantedObject], CalabashError | None]:
    """The networks with what could be put, what could not, and why the first could not."""
    left: list[WantedObject] = []
    first: CalabashError | None = None
    ordered = [one for one in wanted if not getattr(one.item, "virtual_parents", ())]
    for one in (*ordered, *(one for one in wanted if getattr(one.item, "virtual_parents", ()))):
        try:
            networks, _ = networks.put(one.item, platform=platform)
        except CalabashError as error:
            if one.early:
                continue
            left.append(one)
            told = CalabashError(f"{one.place}: {error.message}", reason=error.reason, hint=error.hint)
            first = first or told
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
                f"{kind} {name} is to go: {error.message}", reason=error.reason, hint=error.hint
            )
    return networks, left, first


def specs_of(change: NetworkChange) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Its fields before and after, as the API has them."""
    before, after = (encode(item) if item is not None else None for item in (change.before, change.after))
    return before, after
