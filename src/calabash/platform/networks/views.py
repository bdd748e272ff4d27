"""API views of tenant networks: pages of objects, single objects with their status, and snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from calabash.adapters.store.networks import StoredNetworkObject
from calabash.api import networks as shapes
from calabash.model.network import NetworkKind, vpc_of
from calabash.model.network_status import ConditionKind
from calabash.model.tenancy import Principal
from calabash.platform.networks.changes import Key, NetworkState
from calabash.platform.networks.rights import NetworkRights

_ORDER = {str(kind): place for place, kind in enumerate(NetworkKind)}
_VALID = shapes.NetworkConditionView(kind=ConditionKind.VALID, holds=True, reason="accepted")


def page(
    state: NetworkState, rights: NetworkRights, who: Principal, asked: shapes.NetworkPage
) -> shapes.NetworkObjectList:
    """Return a page of the visible objects, ordered by kind and name."""
    kind, _, name = asked.after.partition(" ")
    after = (_ORDER.get(kind, -1), name)
    tenants: dict[tuple[bool, str], bool] = {}  # visibility by uplink or not, and tenant

    def seen(row: StoredNetworkObject) -> bool:
        key = (row.kind == NetworkKind.UPLINK, row.tenant)
        if key not in tenants:
            tenants[key] = rights.sees(who, row)
        return tenants[key]

    found = sorted(
        (
            (_ORDER[row.kind], row.name)
            for row in state.kept.values()
            if (asked.kind is None or row.kind == asked.kind)
            and (not asked.vpc or (vpc_of(row.name) == asked.vpc and row.kind != NetworkKind.UPLINK))
            and seen(row)
        ),
    )
    left = [key for key in found if key > after]
    kinds = list(NetworkKind)
    items = [shown(state.kept[str(kinds[place]), name]) for place, name in left[: asked.limit]]
    more = len(left) > asked.limit
    return shapes.NetworkObjectList(items=items, next=f"{items[-1].kind} {items[-1].name}" if more else "")


def shown(row: StoredNetworkObject) -> shapes.NetworkObjectView:
    """Return the view of one object with its status."""
    return shapes.NetworkObjectView(
        kind=NetworkKind(row.kind),
        name=row.name,
        tenant=row.tenant,
        generation=row.generation,
        spec=dict(row.spec),
        status=_status(row.status),
    )


def _status(kept: Mapping[str, Any]) -> shapes.NetworkStatusView:
    """Return the reported status.

    The condition ``valid`` is added if no controller reports it: stored objects are valid.
    """
    try:
        status = msgspec.convert(kept, shapes.NetworkStatusView)
    except msgspec.ValidationError:  # reported by a program of another version
        status = shapes.NetworkStatusView()
    if any(condition.kind is ConditionKind.VALID for condition in status.conditions):
        return status
    return msgspec.structs.replace(status, conditions=[_VALID, *status.conditions])


def snapshot(state: NetworkState, changed: frozenset[Key] | None) -> shapes.NetworkSnapshot:
    """Return a snapshot of the objects with these keys; None: of all objects."""
    keys: Iterable[Key] = state.kept if changed is None else sorted(changed)
    return shapes.NetworkSnapshot(
        revision=state.revision,
        whole=changed is None,
        objects=[_plain(state.kept[key]) for key in keys if key in state.kept],
        removed=[
            shapes.NetworkKey(kind=NetworkKind(kind), name=name)
            for kind, name in keys
            if (kind, name) not in state.kept
        ],
    )


def _plain(row: StoredNetworkObject) -> shapes.SnapshotObject:
    return shapes.SnapshotObject(
        kind=NetworkKind(row.kind), name=row.name, generation=row.generation, spec=dict(row.spec)
    )
