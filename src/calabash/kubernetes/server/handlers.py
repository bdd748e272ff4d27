"""HTTP handlers of the cluster's server: devices, pods, queues; other routes are refused with a hint."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from litestar import HttpMethod, delete, get, post, put, route
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler

import calabash
from calabash.adapters.store import public_url
from calabash.api import devices as device_requests
from calabash.api import replies, requests
from calabash.api.overview import OverviewReply
from calabash.api.route import Route
from calabash.api.routes import ROUTES
from calabash.kubernetes.server.cluster import ClusterFace
from calabash.kubernetes.server.devices import DeviceOrders
from calabash.kubernetes.server.queues import QueueWriter
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.platform.handlers.application import OPERATING
from calabash.platform.handlers.request import (
    Asked,
    body_of,
    caller_of,
    guarantee_warnings_of,
    operations_of,
    principal_of,
    visibility_of,
    work,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """Facts about the server for the handlers: its home, and the address of the console."""

    home: str
    namespace: str
    started_at: float
    console: str = ""
    console_failure: str = ""


def cluster_of(request: Asked) -> ClusterFace:
    """Return the cluster that the application serves."""
    cluster: ClusterFace = request.app.state.cluster
    return cluster


@get("/v1/status")
async def status(state: State, request: Asked) -> replies.Status:
    context: ClusterContext = state.context
    operations = operations_of(request)
    visibility = operations.visibility(principal_of(request))
    devices, held, waiting = await work(request, cluster_of(request).counts, visibility)
    return replies.Status(
        version=calabash.__version__,
        pid=os.getpid(),
        home=context.home,
        node=f"cluster, namespace {context.namespace}",
        sim="",
        db=public_url(operations.store.url) if visibility.all else "",
        started_at=context.started_at,
        uptime_s=round(time.time() - context.started_at, 3),
        devices=devices,
        allocations=held,
        pending=waiting,
        driver="",
        arbiter_pid=0,
        membership="kubernetes",
        serves="the tenants of the cluster",
        console=context.console,
        console_failure=context.console_failure,
    )


@get("/v1/devices")
async def list_devices(request: Asked) -> replies.DeviceList:
    return await work(request, cluster_of(request).devices, visibility_of(request))


@get("/v1/devices/{id:str}")
async def show_device(request: Asked, id: str) -> replies.DeviceDetail:  # noqa: A002 - as the routes call it
    return await work(request, cluster_of(request).device, id, visibility_of(request))


@get("/v1/allocations")
async def list_allocations(request: Asked) -> replies.AllocationList:
    visibility = visibility_of(request)
    page = requests.decode_query(dict(request.query_params), requests.AllocationPage)
    return await work(request, cluster_of(request).allocations, page, visibility)


@get("/v1/allocations/{id:str}/why")
async def explain_allocation(request: Asked, id: str) -> replies.WhyReply:  # noqa: A002
    visibility, name = visibility_of(request), requests.checked_id(id)
    return await work(request, lambda: visibility.shown_why(cluster_of(request).explain(name, visibility)))


@get("/v1/overview")
async def show_overview(request: Asked) -> OverviewReply:
    return await work(request, cluster_of(request).overview, visibility_of(request))


@get("/v1/events")
async def list_events(request: Asked) -> replies.EventList:
    visibility = visibility_of(request)
    page = requests.decode_query(dict(request.query_params), requests.EventPage)
    found = await work(
        request, operations_of(request).store.events, after=page.after, limit=page.limit, seen=visibility.events_seen()
    )
    items = [
        replies.EventView(
            id=e.id, at=e.at, kind=e.kind, reason=e.reason, allocation=e.allocation, device=e.device, message=e.message
        )
        for e in found
    ]
    return replies.EventList(items=[visibility.shown_event(event) for event in items])


@post("/v1/devices/{id:str}/drain", status_code=200)
async def drain(request: Asked, id: str) -> replies.DeviceDetail:  # noqa: A002
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "drain devices")
    body = requests.decode(await body_of(request), device_requests.DrainOrder)
    orders: DeviceOrders = request.app.state.orders
    await work(request, orders.drain, id, reason=body.reason, evict=body.evict)
    return await work(request, cluster_of(request).device, id, visibility_of(request))


@post("/v1/devices/{id:str}/undrain", status_code=200)
async def undrain(request: Asked, id: str) -> replies.DeviceDetail:  # noqa: A002
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "put devices back")
    requests.decode(await body_of(request), requests.Nothing)
    orders: DeviceOrders = request.app.state.orders
    await work(request, orders.undrain, id)
    return await work(request, cluster_of(request).device, id, visibility_of(request))


# -- queues ----------------------------------------------------------------------------------------------------


@get("/v1/queues")
async def list_queues(request: Asked) -> replies.QueueList:
    visibility = visibility_of(request)
    found = await work(request, operations_of(request).queues, visibility)
    return replies.QueueList(items=[visibility.shown_queue(queue) for queue in found])


@put("/v1/queues/{name:path}")
async def put_queue(request: Asked, name: str) -> replies.Named:
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "change queues")
    name = name.removeprefix("/")
    body = requests.decode(await body_of(request), requests.QueueSettings)
    writer: QueueWriter = request.app.state.queues
    await work(request, writer.put, name, body)
    return replies.Named(name=name, warnings=await guarantee_warnings_of(request, body.deserved))


@delete("/v1/queues/{name:path}", status_code=200)
async def delete_queue(request: Asked, name: str) -> replies.Named:
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "change queues")
    name = name.removeprefix("/")
    writer: QueueWriter = request.app.state.queues
    await work(request, writer.delete, name)
    return replies.Named(name=name)


# -- what means nothing here -------------------------------------------------------------------------------------

_INSTEAD = (
    ("/v1/allocations", "slices of a cluster are asked for by pods, with `calabash.dev/gpus` in their limits"),
    ("/v1/devices", "`kubectl calabash device` does it on Kubernetes"),
    ("/v1/jobs", "a Job of Kubernetes runs a command, with `calabash.dev/gpus` in the limits of its pod"),
    ("/v1/mig", "the planner cuts cards as pods ask for it; `kubectl get gpunodes -o yaml` shows how they are cut"),
    ("/v1/simulator", "simulated cards of a cluster are set by the chart's agent.simulated"),
    ("/v1/scenario", "`kubectl calabash why` says what the planner knows of a pod"),
    ("/v1/shutdown", "`kubectl scale deployment calabash-server --replicas=0` ends the server"),
)


def _refusal(known: Route) -> HTTPRouteHandler:
    hint = next((hint for begin, hint in _INSTEAD if known.path.startswith(begin)), "see the API reference")

    async def refuse(request: Asked) -> None:
        caller_of(request)
        raise CalabashError(
            f"{known.method} {known.path} is not served by a cluster", reason=Reason.UNSUPPORTED, hint=hint
        )

    path = re.sub(r"\{(\w+)\}", r"{\1:str}", known.path)
    return route(path, http_method=[HttpMethod(known.method)], status_code=known.status)(refuse)


SERVED: tuple[HTTPRouteHandler, ...] = (
    *OPERATING,
    status,
    list_devices,
    show_device,
    drain,
    undrain,
    list_allocations,
    explain_allocation,
    show_overview,
    list_events,
    list_queues,
    put_queue,
    delete_queue,
)


def _names(handler: HTTPRouteHandler) -> set[tuple[str, str]]:
    return {(str(method), _shape(path)) for path in handler.paths for method in handler.http_methods}


def _shape(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def handlers() -> list[HTTPRouteHandler]:
    """Return the handlers of all routes of the API: served, or refused with a hint."""
    served = {name for handler in SERVED for name in _names(handler)}
    return [*SERVED, *(_refusal(known) for known in ROUTES if (known.method, _shape(known.path)) not in served)]
