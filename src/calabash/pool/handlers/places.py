"""Routes of places. A place is a port of a tenant network on which a server of this machine listens."""

from __future__ import annotations

from calabash.api import endpoints, requests
from calabash.api import places as shapes
from calabash.api.replies import Named
from calabash.platform.handlers.audit_middleware import concerns
from calabash.platform.handlers.request import Asked, body_of, caller_of, session_of, work
from calabash.pool.handlers.context import pool_of
from calabash.pool.handlers.ready import until_nothing_lacks
from calabash.pool.networks.listening_ports import OpenedPlace, ServerPlaces
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_SERVER_PORTS)
async def list_places(request: Asked) -> shapes.PlaceList:
    found = await work(request, _places(request).views, caller_of(request).principal)
    return shapes.PlaceList(items=[_shown(one) for one in found])


@handles(endpoints.HOLD_SERVER_PORT)
async def open_place(request: Asked) -> shapes.PlaceView:
    session, places = session_of(request), _places(request)
    who = session.caller.principal
    order = requests.decode(await body_of(request), shapes.PlaceOrder)
    concerns(request, f"port {order.port}")
    new = places.free(order.port)
    opened = await session.work(places.open, who, port=order.port, holder=order.holder, keep_s=order.keep_s)
    concerns(request, f"port {order.port}", tenant=opened.entry.tenant)
    if new:
        try:
            await until_nothing_lacks(session, lambda: places.lacks(opened))
        except BaseException:
            places.close(who, order.port)
            raise
    return _shown(opened)


@handles(endpoints.RELEASE_SERVER_PORT)
async def close_place(request: Asked) -> Named:
    who, places = caller_of(request).principal, _places(request)
    port = requests.decode_query(request.query, shapes.PlaceName).port
    concerns(request, f"port {port}")
    gone = await work(request, places.close, who, port)
    concerns(request, f"port {port}", tenant=gone.tenant)
    return Named(name=gone.port)


def _places(request: Asked) -> ServerPlaces:
    return pool_of(request).ports.places


def _shown(one: OpenedPlace) -> shapes.PlaceView:
    return shapes.PlaceView(
        port=one.entry.port,
        tenant=one.entry.tenant,
        holder=one.entry.holder,
        keep_s=one.entry.keep_s,
        addresses=list(one.addresses),
        namespace=str(one.place.namespace),
    )


PLACES = (list_places, open_place, close_place)
