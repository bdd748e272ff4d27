"""The routes as data: what is asked and answered where. The server is tested against it, the reference made from it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from calabash.api import replies, requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path; ``note`` is what the shapes do not say."""

    method: str
    path: str
    summary: str
    reply: type[msgspec.Struct]
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    administrators: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


ROUTES = (
    Route(method="GET", path="/v1/status", summary="the pool, and whom it serves", reply=replies.Status),
    Route(method="GET", path="/v1/devices", summary="every device with its last reading", reply=replies.DeviceList),
    Route(method="GET", path="/v1/devices/{id}", summary="a device and its health", reply=replies.DeviceDetail),
    Route(
        method="POST",
        path="/v1/devices/{id}/drain",
        summary="gives out nothing new of it, restarts included",
        reply=replies.DeviceDetail,
        body=requests.DrainOrder,
        administrators=True,
    ),
    Route(
        method="POST",
        path="/v1/devices/{id}/undrain",
        summary="puts it back to work when it passes a test",
        reply=replies.DeviceDetail,
        body=requests.Nothing,
        administrators=True,
    ),
    Route(
        method="POST",
        path="/v1/devices/{id}/mode",
        summary="keeps it in one sharing mode, or lets it follow demand; what runs on it runs on",
        reply=replies.DeviceDetail,
        body=requests.DeviceMode,
        administrators=True,
    ),
    Route(
        method="POST",
        path="/v1/devices/{id}/settings",
        summary="gives it out otherwise than the others; what runs on it runs on",
        reply=replies.DeviceDetail,
        body=requests.DeviceSettings,
        administrators=True,
        note="409 where more tenants use it in turns than it would have replicas",
    ),
    Route(method="GET", path="/v1/mig", summary="cards that MIG can cut, and how they are cut", reply=replies.MigCards),
    Route(
        method="POST",
        path="/v1/mig/plan",
        summary="where instances would go if they were asked for now",
        reply=replies.MigPlaces,
        body=requests.MigQuestion,
    ),
    Route(
        method="POST",
        path="/v1/mig/apply",
        summary="cuts idle cards as it says, to stay so",
        reply=replies.MigPlaces,
        body=requests.MigLayout,
        administrators=True,
        note="409 where a card is in use or a layout is impossible; then nothing is changed",
    ),
    Route(
        method="POST",
        path="/v1/devices/{id}/test",
        summary="runs a kernel on it, copies both ways",
        reply=replies.TestReply,
        body=requests.Nothing,
        administrators=True,
        note="409 while it is in use",
    ),
    Route(
        method="POST",
        path="/v1/devices/{id}/reset",
        summary="resets it, and what NVLink joins to it",
        reply=replies.DeviceDetail,
        body=requests.Nothing,
        administrators=True,
        note="409 while any of them is in use or divided by MIG",
    ),
    Route(
        method="GET",
        path="/v1/allocations",
        summary="what is held, then what waits",
        reply=replies.AllocationList,
        query=requests.AllocationPage,
    ),
    Route(
        method="POST",
        path="/v1/allocations",
        summary="asks for a slice",
        reply=replies.GrantReply,
        body=requests.AllocationRequest,
        status=201,
        note="see below",
    ),
    Route(
        method="POST",
        path="/v1/allocations/{id}/started",
        summary="the program is about to run",
        reply=replies.StateReply,
        body=requests.StartedReport,
    ),
    Route(
        method="DELETE",
        path="/v1/allocations/{id}",
        summary="gives it back, or withdraws the request",
        reply=replies.StateReply,
        query=requests.Release,
        note="409 while other programs use it, unless forced; forced, it answers when the devices are free, or 409 with"
        " the processes that hold them",
    ),
    Route(
        method="GET",
        path="/v1/allocations/{id}/environment",
        summary="what the program of one that is held needs, as it was answered when it was granted",
        reply=replies.GrantReply,
    ),
    Route(
        method="GET",
        path="/v1/allocations/{id}/why",
        summary="why it waits, or where it was placed and why there",
        reply=replies.WhyReply,
    ),
    Route(method="GET", path="/v1/queues", summary="all queues", reply=replies.QueueList),
    Route(
        method="PUT",
        path="/v1/queues/{name}",
        summary="creates or replaces a queue",
        reply=replies.Named,
        body=requests.QueueSettings,
        administrators=True,
    ),
    Route(
        method="DELETE",
        path="/v1/queues/{name}",
        summary="deletes an empty queue",
        reply=replies.Named,
        administrators=True,
    ),
    Route(method="GET", path="/v1/tenants", summary="tenants that have an access list", reply=replies.TenantList),
    Route(
        method="PUT",
        path="/v1/tenants/{name}",
        summary="creates or replaces a tenant's access list",
        reply=replies.Named,
        body=requests.TenantSettings,
        administrators=True,
    ),
    Route(
        method="DELETE",
        path="/v1/tenants/{name}",
        summary="deletes a tenant's access list",
        reply=replies.Named,
        administrators=True,
    ),
    Route(
        method="GET",
        path="/v1/scenario",
        summary="what the scheduler knows now",
        reply=replies.ScenarioText,
    ),
    Route(method="GET", path="/v1/events", summary="what happened", reply=replies.EventList, query=requests.EventPage),
    Route(
        method="POST",
        path="/v1/shutdown",
        summary="takes the pool down",
        reply=replies.Stopping,
        body=requests.Shutdown,
        administrators=True,
        note="409 while allocations are held, unless forced",
    ),
)
