"""State of all tenant networks at one revision, and the database rows to write for a change."""

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
    """All networks at one revision.

    Args:
        networks: the networks as objects.
        kept: the stored rows of the same objects, by kind and name.
        revision: number of the revision, which grows by one with each change.
    """

    networks: Networks
    kept: Mapping[Key, StoredNetworkObject]
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDifference:
    """Rows to write for a change: new and changed objects, and keys of removed ones."""

    puts: tuple[StoredNetworkObject, ...]
    removed: tuple[Key, ...]

    def keys(self) -> Iterator[Key]:
        yield from self.removed
        yield from ((item.kind, item.name) for item in self.puts)


def read_state(stored: Iterable[StoredNetworkObject], revision: int) -> NetworkState:
    """Build the state from stored rows. Raises CalabashError if they are not valid networks."""
    rows = list(stored)
    items = (decode(NetworkKind(row.kind), row.name, row.spec) for row in rows)
    return NetworkState(
        networks=Networks.from_objects(items, revision=revision),
        kept={(row.kind, row.name): row for row in rows},
        revision=revision,
    )


def difference(before: NetworkState, after: Networks, applied: frozenset[Key]) -> NetworkDifference:
    """Return the rows to write for the change from ``before`` to ``after``.

    Args:
        before: the stored state.
        after: the new networks.
        applied: kinds and names of the objects that an applied file declares. New ones among them are marked, so that a
            later file can prune them.
    """
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


def merged(before: Mapping[str, Any], reported: Mapping[str, Any], *, partial: bool) -> dict[str, Any]:
    """Return the status of an object after a controller has reported about it.

    A condition keeps the time of its last change if its value is unchanged. Conditions that are not reported are
    unchanged.

    Args:
        before: the stored status.
        reported: the reported status.
        partial: True if the report has only conditions; the generation and the host are then unchanged.
    """
    known = {one["kind"]: one for one in before.get("conditions", ())}
    for one in reported["conditions"]:
        old = known.get(one["kind"])
        since_s = old["since_s"] if old is not None and old["holds"] == one["holds"] else one["since_s"]
        known[one["kind"]] = {**one, "since_s": since_s}
    whole = before if partial else reported
    return {
        "observed_generation": whole.get("observed_generation", 0),
        "conditions": [known[kind] for kind in ConditionKind if kind in known],
        "host": whole.get("host", ""),
    }
