"""Routes of devices, MIG, allocations, queues, events and the pool itself."""

from __future__ import annotations

from typing import Any

from calabash.api import devices as device_requests
from calabash.api import endpoints, replies, requests
from calabash.api import mig as mig_messages
from calabash.api.route import Route

SHOW_STATUS = Route(
    endpoint=endpoints.SHOW_STATUS,
    summary="Get the status of the pool",
    reply=replies.Status,
)
LIST_DEVICES = Route(
    endpoint=endpoints.LIST_DEVICES,
    summary="List devices with their last readings",
    reply=replies.DeviceList,
)
SHOW_DEVICE = Route(
    endpoint=endpoints.SHOW_DEVICE,
    summary="Get a device and its health",
    reply=replies.DeviceDetail,
)
DRAIN_DEVICE = Route(
    endpoint=endpoints.DRAIN_DEVICE,
    summary="Drain a device: allocate nothing new on it, also after a restart of the pool",
    reply=replies.DeviceDetail,
    body=device_requests.DrainOrder,
    administrators=True,
)
UNDRAIN_DEVICE = Route(
    endpoint=endpoints.UNDRAIN_DEVICE,
    summary="Return a device to service if it passes a test",
    reply=replies.DeviceDetail,
    body=requests.Nothing,
    administrators=True,
)
SET_DEVICE_MODE = Route(
    endpoint=endpoints.SET_DEVICE_MODE,
    summary="Keep a device in one sharing mode, or let its mode follow demand; running programs continue",
    reply=replies.DeviceDetail,
    body=device_requests.DeviceMode,
    administrators=True,
)
SET_DEVICE = Route(
    endpoint=endpoints.SET_DEVICE,
    summary="Change the settings of one device; running programs continue",
    reply=replies.DeviceDetail,
    body=device_requests.DeviceSettings,
    administrators=True,
    note="409 if more allocations time-slice the device than the new number of replicas",
)
LIST_MIG = Route(
    endpoint=endpoints.LIST_MIG,
    summary="List devices that support MIG, with their instances",
    reply=mig_messages.MigCards,
)
PLAN_MIG = Route(
    endpoint=endpoints.PLAN_MIG,
    summary="Compute where MIG instances would be placed now",
    reply=mig_messages.MigPlaces,
    body=mig_messages.MigQuestion,
)
APPLY_MIG = Route(
    endpoint=endpoints.APPLY_MIG,
    summary="Apply fixed MIG layouts to idle devices",
    reply=mig_messages.MigPlaces,
    body=mig_messages.MigLayout,
    administrators=True,
    note="409 if a device is in use or a layout is impossible; then nothing is changed",
)
TEST_DEVICE = Route(
    endpoint=endpoints.TEST_DEVICE,
    summary="Test a device with a kernel and copies in both directions",
    reply=replies.TestReply,
    body=requests.Nothing,
    administrators=True,
    note="409 while the device is in use",
)
RESET_DEVICE = Route(
    endpoint=endpoints.RESET_DEVICE,
    summary="Reset a device, and the devices connected to it by NVLink",
    reply=replies.DeviceDetail,
    body=requests.Nothing,
    administrators=True,
    note="409 while one of these devices is in use or has MIG instances",
)
LIST_ALLOCATIONS = Route(
    endpoint=endpoints.LIST_ALLOCATIONS,
    summary="List allocations, followed by waiting requests",
    reply=replies.AllocationList,
    query=requests.AllocationPage,
)
ALLOCATE = Route(
    endpoint=endpoints.ALLOCATE,
    summary="Request a slice",
    reply=replies.GrantReply,
    body=requests.AllocationRequest,
    note="see below",
)
REPORT_START = Route(
    endpoint=endpoints.REPORT_START,
    summary="Report that the program of an allocation is about to run",
    reply=replies.StateReply,
    body=requests.StartedReport,
)
RENEW_ALLOCATION = Route(
    endpoint=endpoints.RENEW_ALLOCATION,
    summary="Renew a standing allocation",
    reply=replies.KeptReply,
    body=requests.Nothing,
)
CHANGE_QUEUE = Route(
    endpoint=endpoints.CHANGE_QUEUE,
    summary="Move a waiting request and its gang to another queue",
    reply=replies.MovedReply,
    note="the request keeps its age and tenant; the requesting user must be permitted to use the queue. 409 if the"
    " request no longer waits",
)
RELEASE = Route(
    endpoint=endpoints.RELEASE,
    summary="Release an allocation, or withdraw a waiting request",
    reply=replies.StateReply,
    query=requests.Release,
    note="409 while other programs use the allocation, unless forced; if forced, the reply is sent when the devices"
    " are free, or 409 with the processes that hold them",
)
SHOW_ENVIRONMENT = Route(
    endpoint=endpoints.SHOW_ENVIRONMENT,
    summary="Get the environment of an allocation's program, as in the reply that granted it",
    reply=replies.GrantReply,
)
EXPLAIN = Route(
    endpoint=endpoints.EXPLAIN,
    summary="Explain why a request waits, or where and why it was placed",
    reply=replies.WhyReply,
)
LIST_QUEUES = Route(
    endpoint=endpoints.LIST_QUEUES,
    summary="List queues",
    reply=replies.QueueList,
)
PUT_QUEUE = Route(
    endpoint=endpoints.PUT_QUEUE,
    summary="Create a queue, or change the given settings",
    reply=replies.Named,
    body=requests.QueueSettings,
    administrators=True,
)
DELETE_QUEUE = Route(
    endpoint=endpoints.DELETE_QUEUE,
    summary="Delete an empty queue",
    reply=replies.Named,
    administrators=True,
)
EXPORT_SCENARIO = Route(
    endpoint=endpoints.EXPORT_SCENARIO,
    summary="Get the state of the scheduler as a scenario file",
    reply=replies.ScenarioText,
)
LIST_EVENTS = Route(
    endpoint=endpoints.LIST_EVENTS,
    summary="List events",
    reply=replies.EventList,
    query=requests.EventPage,
)
SHUT_DOWN = Route(
    endpoint=endpoints.SHUT_DOWN,
    summary="Stop the pool",
    reply=replies.Stopping,
    body=requests.Shutdown,
    administrators=True,
    note="409 while allocations are held, unless forced or the programs are kept",
)

POOL: tuple[Route[Any], ...] = (
    SHOW_STATUS,
    LIST_DEVICES,
    SHOW_DEVICE,
    DRAIN_DEVICE,
    UNDRAIN_DEVICE,
    SET_DEVICE_MODE,
    SET_DEVICE,
    LIST_MIG,
    PLAN_MIG,
    APPLY_MIG,
    TEST_DEVICE,
    RESET_DEVICE,
    LIST_ALLOCATIONS,
    ALLOCATE,
    REPORT_START,
    RENEW_ALLOCATION,
    CHANGE_QUEUE,
    RELEASE,
    SHOW_ENVIRONMENT,
    EXPLAIN,
    LIST_QUEUES,
    PUT_QUEUE,
    DELETE_QUEUE,
    EXPORT_SCENARIO,
    LIST_EVENTS,
    SHUT_DOWN,
)
