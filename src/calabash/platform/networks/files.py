"""Apply a file of network objects: check permissions and limits, prune, and return the changes.

Pruning removes an object if three conditions hold: an earlier file created it, the present file declares its VPC, and
the present file does not name the object. VPCs, uplinks and objects that were created without a file are never pruned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from calabash.adapters.store.networks import StoredNetworkObject
from calabash.api import networks as shapes
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind, Vpc, kind_of, vpc_of
from calabash.model.network_services import LoadBalancer
from calabash.model.tenancy import Principal
from calabash.net.objects.specs import decode, parse_kind
from calabash.net.store.apply_plan import (
    DesiredObject,
    Key,
    NetworkChange,
    apply_objects,
    changes_between,
    specs_of,
)
from calabash.net.store.networks import Networks
from calabash.platform.networks.changes import NetworkState
from calabash.platform.networks.rights import Kept, bounded
from calabash.platform.networks.store import NetworkStore

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def apply_file(
    network_store: NetworkStore,
    who: Principal,
    file: shapes.NetworkFile,
    *,
    certified: Callable[[LoadBalancer], None] = lambda _: None,
) -> tuple[list[NetworkChange], int]:
    """Apply a file, completely or not at all; return the change of each object, and the new revision.

    If ``file.dry_run`` is true, return the same changes but write nothing.

    Args:
        certified: raises CalabashError if the certificate of a load balancer does not exist.
    """
    wanted = read_wanted(file.documents)
    named = frozenset((kind_of(one.item), one.item.name) for one in wanted)
    found: list[NetworkChange] = []

    def judged(state: NetworkState) -> Networks:
        kept = _with_new_vpcs(network_store, who, state, wanted)
        for one in wanted:
            with_place(one.place, network_store.rights.require_put, who, kept, one.item, room=False)
            if isinstance(one.item, LoadBalancer):
                with_place(one.place, certified, one.item)
        owned = [DesiredObject(place=one.place, item=network_store.owned(who, state, one.item)) for one in wanted]
        unwanted = [*_pruned(state, named)] if file.prune else []
        for kind, name in unwanted:
            network_store.rights.require_change(who, kept, kind, name)
        after = apply_objects(state.networks, owned, unwanted, platform=network_store.rights.platform(who))
        found[:] = changes_between(state.networks, after, owned)
        for tenant, (fresh, gone) in _counted(kept, found).items():
            network_store.rights.require_room(who, state.kept, tenant, fresh, gone=gone)
        return state.networks if file.dry_run else after

    state = network_store.change(who, judged, applied=named)
    return found, state.revision


def read_wanted(documents: Sequence[shapes.NetworkDocument]) -> list[DesiredObject]:
    """Decode the objects of a file's documents. Raises CalabashError with the place of the invalid document."""
    found = []
    for number, document in enumerate(documents, start=1):
        place = document.place or f"document {number}"
        kind = with_place(place, parse_kind, document.kind)
        item = with_place(place, decode, kind, document.name, document.spec)
        found.append(DesiredObject(place=place, item=item))
    return found


def with_place(place: str, call: Callable[Given, Answer], *given: Given.args, **named: Given.kwargs) -> Answer:
    """Call a function and return its result; if it raises CalabashError, put ``place`` before the message.

    ``place`` tells the user where the error is, for example ``document 3``.
    """
    try:
        return call(*given, **named)
    except CalabashError as error:
        raise CalabashError(f"{place}: {error.message}", reason=error.reason, hint=error.hint) from error


def shown_changes(changes: Iterable[NetworkChange], revision: int) -> shapes.NetworkChanges:
    """Return the API's view of the changes."""
    views = []
    for change in changes:
        before, after = specs_of(change)
        views.append(
            shapes.NetworkChangeView(change=change.word, kind=change.kind, name=change.name, before=before, after=after)
        )
    return shapes.NetworkChanges(changes=views, revision=revision)


def _with_new_vpcs(
    network_store: NetworkStore, who: Principal, state: NetworkState, wanted: Iterable[DesiredObject]
) -> Kept:
    """Return the stored rows, and rows for the new VPCs of a file.

    Permission checks look up the VPC of an object in these rows. With the new rows, a file may create a VPC and objects in it.
    """
    kept = dict(state.kept)
    for one in wanted:
        key = (str(NetworkKind.VPC), one.item.name)
        if isinstance(one.item, Vpc) and key not in kept:
            tenant = with_place(one.place, network_store.rights.tenant_for, who, one.item.tenant)
            kept[key] = StoredNetworkObject(kind=key[0], name=key[1], tenant=tenant, generation=0, spec={}, status={})
    return kept


def _counted(
    kept: Kept, changes: Iterable[NetworkChange]
) -> dict[str, tuple[Counter[NetworkKind], Counter[NetworkKind]]]:
    """Return the numbers of added and of removed objects by kind, for each tenant whose limits must be checked.

    These are the tenants that get new objects. Objects that the platform creates are not counted.
    """
    fresh: dict[str, Counter[NetworkKind]] = defaultdict(Counter)
    gone: dict[str, Counter[NetworkKind]] = defaultdict(Counter)
    for change in changes:
        if change.kind is NetworkKind.UPLINK or (change.before is None) == (change.after is None):
            continue
        if bounded(change.kind, change.name):
            into = fresh if change.before is None else gone
            into[kept[NetworkKind.VPC, vpc_of(change.name)].tenant][change.kind] += 1
    return {tenant: (found, gone[tenant]) for tenant, found in fresh.items()}


def _pruned(state: NetworkState, named: frozenset[Key]) -> Iterable[Key]:
    vpcs = {name for kind, name in named if kind is NetworkKind.VPC}
    for row in state.kept.values():
        kind = NetworkKind(row.kind)
        if kind in {NetworkKind.VPC, NetworkKind.UPLINK} or not row.applied:
            continue
        if vpc_of(row.name) in vpcs and (kind, row.name) not in named:
            yield kind, row.name
