"""gRPC service of the device plug-in, on an event loop.

Allocate and PreStartContainer run in separate thread pools, so that slow starts of containers never delay an admission.
ListAndWatch needs no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import grpc.aio

from calabash.adapters.kubelet.followed_value import Followed
from calabash.adapters.kubelet.protocol import Allocated, PluginDevice, PluginHandler
from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.model.errors import CalabashError
from calabash.model.messages import redacted

ANSWERED_KEY = "calabash-cdi-names"  # metadata of PreStartContainer: the CDI names with which a relay answered Allocate
DEVICE_LIST_BYTES_MAX = 3 << 20  # kubelets take at most 4 MiB
_ADMITTING, _STARTING = 2, 16
_DETAILS_MAX = 2000
R = TypeVar("R")
_Context = grpc.aio.ServicerContext[Any, Any]


class DevicePluginService:
    """Implementation of ``v1beta1.DevicePlugin``. All methods except ``stop`` run on the event loop.

    Args:
        handler: answers the calls.
        on_fault: called for exceptions of the handler that are not a CalabashError.
    """

    def __init__(self, handler: PluginHandler, on_fault: Callable[[Exception], None]) -> None:
        self._handler, self._on_fault = handler, on_fault
        self.devices = Followed(pb.ListAndWatchResponse())
        self._admitting = ThreadPoolExecutor(_ADMITTING, "device-admit")
        self._starting = ThreadPoolExecutor(_STARTING, "device-start")

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the gRPC handler of all methods."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": unary(
                self._options, pb.Empty.FromString, pb.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": stream(self._list, pb.Empty.FromString, pb.ListAndWatchResponse.SerializeToString),
            "GetPreferredAllocation": unary(
                self._preferred,
                pb.PreferredAllocationRequest.FromString,
                pb.PreferredAllocationResponse.SerializeToString,
            ),
            "Allocate": unary(self._allocate, pb.AllocateRequest.FromString, pb.AllocateResponse.SerializeToString),
            "PreStartContainer": unary(
                self._start, pb.PreStartContainerRequest.FromString, pb.PreStartContainerResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)

    def stop(self) -> None:
        """End the threads; running calls end by themselves."""
        self._admitting.shutdown(wait=False, cancel_futures=True)
        self._starting.shutdown(wait=False, cancel_futures=True)

    async def _options(self, _request: pb.Empty, _context: _Context) -> pb.DevicePluginOptions:
        return plugin_options()

    async def _list(self, _request: pb.Empty, _context: _Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        async with aclosing(self.devices.follow()) as following:
            async for devices in following:
                yield devices

    async def _allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        reply = pb.AllocateResponse()
        for wanted in request.container_requests:
            ids = tuple(wanted.devices_ids)
            answer = await self._ask(context, self._admitting, lambda ids=ids: self._handler.allocate(ids))  # type: ignore[misc]
            reply.container_responses.append(_allocated(answer))
        return reply

    async def _start(self, request: pb.PreStartContainerRequest, context: _Context) -> pb.PreStartContainerResponse:
        ids = tuple(request.devices_ids)
        answered = _answered(context)
        await self._ask(context, self._starting, lambda: self._handler.pre_start(ids, answered))
        return pb.PreStartContainerResponse()

    async def _preferred(
        self, request: pb.PreferredAllocationRequest, context: _Context
    ) -> pb.PreferredAllocationResponse:
        reply = pb.PreferredAllocationResponse()
        for wanted in request.container_requests:
            asked = (
                tuple(wanted.available_deviceIDs),
                tuple(wanted.must_include_deviceIDs),
                wanted.allocation_size,
            )
            chosen = await self._ask(context, self._admitting, lambda asked=asked: self._handler.preferred(*asked))  # type: ignore[misc]
            reply.container_responses.append(pb.ContainerPreferredAllocationResponse(deviceIDs=chosen))
        return reply

    async def _ask(self, context: _Context, threads: ThreadPoolExecutor, question: Callable[[], R]) -> R:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, question)
        except CalabashError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal(error))
        except Exception as error:
            self._on_fault(error)
            await context.abort(
                grpc.StatusCode.INTERNAL, f"fault in the agent: {type(error).__name__}: {error}"[:_DETAILS_MAX]
            )
        raise AssertionError("abort returned")


def plugin_options() -> pb.DevicePluginOptions:
    """Return the options that the plug-in requests from the kubelet."""
    return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def device_list(devices: list[PluginDevice]) -> pb.ListAndWatchResponse:
    """Return the devices as the kubelet's message. Raises ValueError for a list that the kubelet would refuse."""
    reply = pb.ListAndWatchResponse()
    for device in devices:
        if not 0 < len(device.id) <= 63:
            raise ValueError(f"device ID {device.id!r} has {len(device.id)} characters, must have 1 to 63")
        entry = reply.devices.add(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
        if device.numa_node >= 0:
            entry.topology.nodes.add(ID=device.numa_node)
    if len({device.id for device in devices}) != len(devices):
        raise ValueError("a device ID is in the list twice")
    if reply.ByteSize() > DEVICE_LIST_BYTES_MAX:
        raise ValueError(f"{len(devices)} devices take {reply.ByteSize()} bytes, at most {DEVICE_LIST_BYTES_MAX}")
    return reply


def refusal(error: CalabashError) -> str:
    """Return the text for the pod's event; names of others are redacted, because users of the namespace read it."""
    message, hint = redacted(error.message_text), redacted(error.hint_text)
    text = f"{message}; hint: {hint}" if hint else message
    return text[:_DETAILS_MAX]


def _answered(context: _Context) -> tuple[str, ...]:
    """Return the CDI names with which a relay answered Allocate; () if the kubelet itself calls."""
    for key, value in context.invocation_metadata() or ():
        if key == ANSWERED_KEY and isinstance(value, str):
            return tuple(name for name in value.split(",") if name)
    return ()


def _allocated(answer: Allocated) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=dict(answer.environment), cdi_devices=[pb.CDIDevice(name=name) for name in answer.cdi_names]
    )
