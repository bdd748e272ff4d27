"""Routes of tenant networks."""

from __future__ import annotations

import asyncio

import msgspec

from calabash.adapters.store.networks import StoredNetworkObject
from calabash.api import endpoints, requests
from calabash.api import networks as shapes
from calabash.api.replies import Named
from calabash.model.errors import CalabashError, Reason
from calabash.model.network_services import LoadBalancer
from calabash.net.objects.specs import decode, parse_kind
from calabash.platform.handlers.audit_middleware import concerns
from calabash.platform.handlers.request import Asked, body_of, caller_of, operations_of, work
from calabash.platform.networks import views
from calabash.platform.networks.certificates import CertificateStore
from calabash.platform.networks.files import apply_file, shown_changes
from calabash.platform.networks.store import NetworkStore
from calabash.transport.web.routing import handles

AUDITED_MAX = 5  # most objects of a file that an audit line names


@handles(endpoints.LIST_NETWORK_OBJECTS)
async def list_objects(request: Asked) -> shapes.NetworkObjectList:
    who, network_store = caller_of(request).principal, network_store_of(request)
    page = requests.decode_query(request.query, shapes.NetworkPage)
    return await work(request, views.page, network_store.state(), network_store.rights, who, page)


@handles(endpoints.SHOW_NETWORK_OBJECT)
async def show_object(request: Asked, kind: str) -> shapes.NetworkObjectView:
    who, network_store = caller_of(request).principal, network_store_of(request)
    name = requests.decode_query(request.query, shapes.NetworkName).name
    return views.shown(network_store.rights.found(who, network_store.state().kept, parse_kind(kind), name))


@handles(endpoints.PUT_NETWORK_OBJECT)
async def put_object(request: Asked) -> shapes.NetworkObjectView:
    who, network_store = caller_of(request).principal, network_store_of(request)
    order = requests.decode(await body_of(request), shapes.NetworkOrder)
    concerns(request, f"{order.kind} {order.name}")
    wanted = decode(order.kind, order.name, order.spec)
    if isinstance(wanted, LoadBalancer) and wanted.certificate:
        await work(request, certificates_of(request).require, who, wanted)
    made = await work(request, network_store.put, who, wanted, new=order.new, generation=order.generation)
    return views.shown(_noted(request, made))


@handles(endpoints.DELETE_NETWORK_OBJECT)
async def remove_object(request: Asked, kind: str) -> Named:
    who, network_store = caller_of(request).principal, network_store_of(request)
    order = requests.decode_query(request.query, shapes.NetworkRemoval)
    found = parse_kind(kind)
    concerns(request, f"{found} {order.name}")
    gone = await work(request, network_store.remove, who, found, order.name, cascade=order.cascade)
    return Named(name=_noted(request, gone).name)


@handles(endpoints.APPLY_NETWORKS)
async def apply_objects(request: Asked) -> shapes.NetworkChanges:
    who, network_store = caller_of(request).principal, network_store_of(request)
    file = requests.decode(await body_of(request), shapes.NetworkFile)
    certified = certificates_of(request).require_there
    found, revision = await work(request, apply_file, network_store, who, file, certified=certified)
    changed = [f"{one.kind} {one.name}" for one in found if one.word != "unchanged"]
    concerns(request, f"{'tried' if file.dry_run else len(changed)}: {', '.join(changed[:AUDITED_MAX])}")
    return await work(request, shown_changes, found, revision)


@handles(endpoints.SHOW_NETWORK_SNAPSHOT)
async def snapshot(request: Asked) -> shapes.NetworkSnapshot:
    who, network_store = caller_of(request).principal, network_store_of(request)
    network_store.rights.require_platform(who, "read the networks of all tenants")
    since = requests.decode_query(request.query, shapes.NetworkSince)
    await _wait_for_change(network_store, since.after, since.wait)
    return await work(request, _snapshot, network_store, since)


@handles(endpoints.REPORT_NETWORK_STATUS)
async def report(request: Asked) -> shapes.NetworkReported:
    who, network_store = caller_of(request).principal, network_store_of(request)
    network_store.rights.require_platform(who, "report the status of networks")
    reports = requests.decode(await body_of(request), shapes.NetworkReports)
    statuses = {(str(one.kind), one.name): msgspec.to_builtins(one.status) for one in reports.items}
    partial = {(str(one.kind), one.name) for one in reports.items if one.partial}
    return shapes.NetworkReported(known=await work(request, network_store.report, statuses, partial))


def network_store_of(request: Asked) -> NetworkStore:
    """Return the networks of the pool. Raises UNSUPPORTED if it has none."""
    found = operations_of(request).networks
    if found is None:
        raise CalabashError(
            "this pool has no networks", reason=Reason.UNSUPPORTED, hint="use those of the pool of a machine"
        )
    return found


def certificates_of(request: Asked) -> CertificateStore:
    """Return the certificates of the pool. Raises UNSUPPORTED if it has no networks."""
    network_store_of(request)
    found = operations_of(request).certificates
    assert found is not None
    return found


async def _wait_for_change(network_store: NetworkStore, revision: int, wait_s: float) -> None:
    """Wait until the revision of the networks is not ``revision`` any more, ``wait_s`` seconds are over, or the server ends."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    until_s = loop.time() + wait_s

    def notify() -> None:
        loop.call_soon_threadsafe(changed.set)

    with network_store.notifying(notify):
        while network_store.state().revision == revision and not network_store.ending:
            try:
                async with asyncio.timeout_at(until_s):
                    await changed.wait()
            except TimeoutError:
                return
            changed.clear()


def _snapshot(network_store: NetworkStore, since: shapes.NetworkSince) -> shapes.NetworkSnapshot:
    state, changed = network_store.since(since.after)
    return views.snapshot(state, changed if since.changes or not changed else None)


def _noted(request: Asked, row: StoredNetworkObject) -> StoredNetworkObject:
    """Set the object that the request's audit line names; return the row unchanged."""
    concerns(request, f"{row.kind} {row.name}", tenant=row.tenant)
    return row


NETWORKS = (list_objects, show_object, put_object, remove_object, apply_objects, snapshot, report)
