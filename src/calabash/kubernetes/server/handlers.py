"""HTTP handlers of the cluster's server for devices, pods and queues.

Routes of the API that make sense on a single machine only are refused with a hint.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import calabash
from calabash.adapters.store import public_url
from calabash.api import devices as device_requests
from calabash.api import endpoints, replies, requests
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
from calabash.transport.web.application import State
from calabash.transport.web.routing import Handler, handles


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """Facts about the server that ``GET /v1/status`` reports.

    Args:
        home: directory with the server's sockets, lock and log.
        namespace: namespace of the product.
        started_at: start time of the server, in seconds since the epoch.
        console: URL of the web console; "" if it is not served.
        console_failure: the reason why the console is not served; "" if it is served or not wanted.
    """

    home: str
    namespace: str
    started_at: float
    console: str = ""
    console_failure: str = ""


def cluster_of(request: Asked) -> ClusterFace:
    """Return the cluster that the application serves."""
    cluster: ClusterFace = request.app.state.cluster
    return cluster


@handles(endpoints.SHOW_STATUS)
async def status(state: State, request: Asked) -> replies.Status:
    context: ClusterContext = state.context
    operations = operations_of(request)
    visibility = operations.pool.visibility(principal_of(request))
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


@handles(endpoints.LIST_DEVICES)
async def list_devices(request: Asked) -> replies.DeviceList:
    return await work(request, cluster_of(request).devices, visibility_of(request))


@handles(endpoints.SHOW_DEVICE)
async def show_device(request: Asked, device: str) -> replies.DeviceDetail:
    return await work(request, cluster_of(request).device, device, visibility_of(request))


@handles(endpoints.LIST_ALLOCATIONS)
async def list_allocations(request: Asked) -> replies.AllocationList:
    visibility = visibility_of(request)
    page = requests.decode_query(request.query, requests.AllocationPage)
    return await work(request, cluster_of(request).allocations, page, visibility)


@handles(endpoints.EXPLAIN)
async def explain_allocation(request: Asked, allocation: str) -> replies.WhyReply:
    visibility, name = visibility_of(request), requests.checked_id(allocation)
    return await work(request, cluster_of(request).explain, name, visibility)


@handles(endpoints.SHOW_OVERVIEW)
async def show_overview(request: Asked) -> OverviewReply:
    return await work(request, cluster_of(request).overview, visibility_of(request))


@handles(endpoints.LIST_EVENTS)
async def list_events(request: Asked) -> replies.EventList:
    visibility = visibility_of(request)
    page = requests.decode_query(request.query, requests.EventPage)
    found = await work(
        request, operations_of(request).store.events, after=page.after, limit=page.limit, seen=visibility.events_seen()
    )
    items = [
        replies.EventView(
            id=e.id,
            at=e.at,
            kind=e.kind,
            reason=e.reason,
            allocation=e.allocation,
            device=e.device,
            message=visibility.text(e.message),
        )
        for e in found
    ]
    return replies.EventList(items=items)


@handles(endpoints.DRAIN_DEVICE)
async def drain(request: Asked, device: str) -> replies.DeviceDetail:
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "drain devices")
    body = requests.decode(await body_of(request), device_requests.DrainOrder)
    orders: DeviceOrders = request.app.state.orders
    await work(request, orders.drain, device, reason=body.reason, evict=body.evict)
    return await work(request, cluster_of(request).device, device, visibility_of(request))


@handles(endpoints.UNDRAIN_DEVICE)
async def undrain(request: Asked, device: str) -> replies.DeviceDetail:
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "put devices back")
    requests.decode(await body_of(request), requests.Nothing)
    orders: DeviceOrders = request.app.state.orders
    await work(request, orders.undrain, device)
    return await work(request, cluster_of(request).device, device, visibility_of(request))


# -- queues ----------------------------------------------------------------------------------------------------


@handles(endpoints.LIST_QUEUES)
async def list_queues(request: Asked) -> replies.QueueList:
    visibility = visibility_of(request)
    found = await work(request, operations_of(request).pool.queues, visibility)
    return replies.QueueList(items=[visibility.shown_queue(queue) for queue in found])


@handles(endpoints.PUT_QUEUE)
async def put_queue(request: Asked, name: str) -> replies.Named:
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "change queues")
    body = requests.decode(await body_of(request), requests.QueueSettings)
    writer: QueueWriter = request.app.state.queues
    await work(request, writer.put, name, body)
    return replies.Named(name=name, warnings=await guarantee_warnings_of(request, body.guaranteed))


@handles(endpoints.DELETE_QUEUE)
async def delete_queue(request: Asked, name: str) -> replies.Named:
    operations_of(request).permission.require(caller_of(request).principal, Action.OPERATE, "change queues")
    writer: QueueWriter = request.app.state.queues
    await work(request, writer.delete, name)
    return replies.Named(name=name)


# -- what means nothing here -------------------------------------------------------------------------------------

_INSTEAD = (
    (endpoints.ALLOCATE.path, "slices of a cluster are asked for by pods, with `calabash.dev/gpus` in their limits"),
    (endpoints.LIST_DEVICES.path, "`kubectl calabash device` does it on Kubernetes"),
    (endpoints.LIST_JOBS.path, "a Job of Kubernetes runs a command, with `calabash.dev/gpus` in the limits of its pod"),
    (
        endpoints.LIST_MIG.path,
        "the planner cuts cards as pods ask for it; `kubectl get gpunodes -o yaml` shows how they are cut",
    ),
    (endpoints.SHOW_SIMULATOR.path, "simulated cards of a cluster are set by the chart's agent.simulated"),
    (endpoints.EXPORT_SCENARIO.path, "`kubectl calabash why` says what the planner knows of a pod"),
    (endpoints.SHUT_DOWN.path, "`kubectl scale deployment calabash-server --replicas=0` ends the server"),
)


def _refusal(known: Route[Any]) -> Handler:
    hint = next((hint for begin, hint in _INSTEAD if known.path.startswith(begin)), "see the API reference")

    async def refuse(request: Asked) -> None:
        caller_of(request)
        raise CalabashError(
            f"{known.method} {known.path} is not served by a cluster", reason=Reason.UNSUPPORTED, hint=hint
        )

    return handles(known.endpoint)(refuse)


SERVED: tuple[Handler, ...] = (
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


def handlers() -> list[Handler]:
    """Return a handler for each route of the API; routes that this server does not serve are refused with a hint."""
    served = {(handler.method, handler.path) for handler in SERVED}
    return [*SERVED, *(_refusal(known) for known in ROUTES if (known.method, known.path) not in served)]
