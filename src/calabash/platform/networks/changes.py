"""What one change of the book of networks comes to: the rows that are written for it, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calabash.adapters.store.networks import StoredNetworkObject
from calabash.model.network import NetworkKind, NetworkObject, Vpc, kind_of, vpc_of
from calabash.model.network_status import ConditionKind
from calabash.net.objects.specs import decode, encode
from calabash.net.store.networks import Networks

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkState:
    """All networks at one revision: as objects, and as they are kept."""

    networks: Networks
    kept: Mapping[Key, StoredNetworkObject]
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDifference:
    """What is to be written: objects that are new or another than before, and those that are gone."""

    puts: tuple[StoredNetworkObject, ...]
    removed: tuple[Key, ...]

    def keys(self) -> Iterator[Key]:
        yield from self.removed
        yield from ((item.kind, item.name) for item in self.puts)


def read_state(stored: Iterable[StoredNetworkObject], revision: int) -> NetworkState:
    """The state that is kept. Raises CalabashError where the database was changed to what is no book of networks."""
    rows = list(stored)
    items = (decode(NetworkKind(row.kind), row.name, row.spec) for row in rows)
    return NetworkState(
        networks=Networks.from_objects(items, revision=revision),
        kept={(row.kind, row.name): row for row in rows},
        revision=revision,
    )


def difference(before: NetworkState, after: Networks, applied: frozenset[Key]) -> NetworkDifference:
    """From the one to the other. ``applied``: what a file has said, which it may take back."""
    changed, gone = after.changes_since(before.networks)
    return NetworkDifference(
        puts=tuple(_row(item, after, before.kept, applied) for item in changed),
        removed=tuple((str(kind_of(item)), item.name) for item in gone),
    )


def _row(
    item: NetworkObject, networks: Networks, kept: Mapping[Key, StoredNetworkObject], applied: frozenset[Key]
) -> StoredNetworkObject:
    kind = kind_of(item)
    known = kept.get((kind, item.name))
    vpc = networks.find(Vpc, vpc_of(item.name))
    return StoredNetworkObject(
        kind=str(kind),
        name=item.name,
        tenant=vpc.tenant if vpc is not None and kind is not NetworkKind.UPLINK else "",
        generation=known.generation + 1 if known else 1,
        applied=known.applied if known else (kind, item.name) in applied,
        spec=encode(item),
        status=known.status if known else {},
    )


def merged(before: Mapping[str, Any], told: Mapping[str, Any], *, partial: bool) -> dict[str, Any]:
    """A status as it was with what is told now; ``partial``: of its conditions alone. The time of a condition that holds as
    before stays."""
    known = {one["kind"]: one for one in before.get("conditions", ())}
    for one in told["conditions"]:
        old = known.get(one["kind"])
        since_s = old["since_s"] if old is not None and old["holds"] == one["holds"] else one["since_s"]
        known[one["kind"]] = {**one, "since_s": since_s}
    whole = before if partial else told
    return {
        "observed_generation": whole.get("observed_generation", 0),
        "conditions": [known[kind] for kind in ConditionKind if kind in known],
        "host": whole.get("host", ""),
    }
