"""Relay between the kubelet and the agent's device plug-ins, which keeps a node's devices while the agent restarts.

A kubelet ties the devices of a resource to one stream of its plug-in. When the plug-in's process dies, the kubelet counts
the devices as unhealthy at once, and a pod that it is admitting fails for good. The relay is a process of its own with two
sides: to the kubelet it is the device plug-in, to the agent it is the kubelet. The agent registers with it, the relay
registers the same resource with the kubelet and follows the agent's list of devices for as long as the kubelet follows the
relay's.

While no agent answers, the relay keeps the last list for ``HOLD_S``, answers Allocate by itself, and lets PreStartContainer
wait for the next agent; after ``WAIT_S`` the container is refused and the kubelet asks again. An agent that ends its list in
good order withdraws the resource, and the relay withdraws it from the kubelet.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from calabash.adapters.kubelet.channels import address, channel_options
from calabash.adapters.kubelet.grpc_server import ServingThread, inode, listen, stop_server
from calabash.adapters.kubelet.protocol import Allocated, PluginDevice, PluginHandler
from calabash.adapters.kubelet.server import DevicePluginServer
from calabash.adapters.kubelet.service import ANSWERED_KEY
from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.model.errors import CalabashError, Reason

HOLD_S = 60.0  # longer than an agent takes to start; meanwhile a scheduler sends pods to a node without one
WAIT_S = 10.0  # the kubelet ends a call after 30 s, and each waiting call occupies a thread
ANSWERS_KEPT_MAX = 4096
RESOURCES_MAX = 8
SOCKET = "kubelet.sock"
_AGAIN_S = 0.1
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class PluginRelay(ServingThread):
    """Serves the agent on a socket of ``agents`` and the kubelet on one socket for each resource.

    Args:
        agents: directory in which the agent's plug-ins serve; only root may enter it.
        kubelet: the kubelet's ``device-plugins`` directory.
        answer: returns the answer to Allocate for some device IDs; its CDI names are new at each call.
        on_error: receives the errors of registrations and calls.
        hold_s: how long the devices of an agent that died stay healthy.
        wait_s: how long a start of a container waits for an agent.
    """

    def __init__(
        self,
        *,
        agents: Path,
        kubelet: Path,
        answer: Callable[[tuple[str, ...]], Allocated],
        on_error: Callable[[Exception], None] = lambda _error: None,
        hold_s: float = HOLD_S,
        wait_s: float = WAIT_S,
    ) -> None:
        super().__init__("plugin-relay", on_error)
        self._agents, self._kubelet, self._answer = agents, kubelet, answer
        self._hold_s, self._wait_s = hold_s, wait_s
        self._plugins: dict[str, _RelayedPlugin] = {}
        self._server: grpc.aio.Server | None = None
        self._inode = 0

    async def _poll(self) -> None:
        socket = self._agents / SOCKET
        if self._server is None or inode(socket) != self._inode:
            await stop_server(self._server, socket)
            self._server = await listen(socket, self._handlers())
            self._inode = inode(socket)
        for resource, plugin in list(self._plugins.items()):
            await plugin.poll(time.monotonic())
            if plugin.withdrawn:
                del self._plugins[resource]
                await plugin.close()

    async def _close(self) -> None:
        server, self._server = self._server, None
        await stop_server(server, self._agents / SOCKET)
        for plugin in self._plugins.values():
            await plugin.close()
        self._plugins.clear()

    def _handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        register = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        return grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})

    async def _register(self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.Empty:
        """Accept the registration of the agent's plug-in for a resource, which replaces an earlier one."""
        if Path(request.endpoint).name != request.endpoint or not request.endpoint:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"endpoint {request.endpoint[:64]!r} is not the name of a socket"
            )
        plugin = self._plugins.get(request.resource_name)
        if plugin is None:
            if len(self._plugins) >= RESOURCES_MAX:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{RESOURCES_MAX} resources are registered already"
                )
            plugin = _RelayedPlugin(
                request.resource_name,
                kubelet=self._kubelet,
                answer=self._answer,
                on_error=self._on_error,
                hold_s=self._hold_s,
                wait_s=self._wait_s,
            )
            self._plugins[request.resource_name] = plugin
            await plugin.open()
        plugin.endpoint = self._agents / request.endpoint
        return pb.Empty()


class _RelayedPlugin(PluginHandler):
    """Relay of one resource; parameters as for ``PluginRelay``.

    Methods of ``PluginHandler`` run on threads of the server, all others on the event loop.
    """

    def __init__(
        self,
        resource: str,
        *,
        kubelet: Path,
        answer: Callable[[tuple[str, ...]], Allocated],
        on_error: Callable[[Exception], None],
        hold_s: float,
        wait_s: float,
    ) -> None:
        self._resource = resource
        self._answer = answer
        self._hold_s, self._wait_s = hold_s, wait_s
        self._server = DevicePluginServer(resource, self, directory=kubelet, on_error=on_error)
        self._loop = asyncio.get_running_loop()
        self._answers: OrderedDict[frozenset[str], tuple[str, ...]] = OrderedDict()  # used on the loop alone
        self._devices: list[PluginDevice] = []
        self._following: asyncio.Task[bool] | None = None
        self._lost_s: float | None = None  # monotonic time at which the agent's list broke off
        self.endpoint: Path | None = None
        self.withdrawn = False

    async def open(self) -> None:
        """Start the device plug-in server for the kubelet."""
        await asyncio.to_thread(self._server.start)

    async def close(self) -> None:
        """Stop serving the kubelet; containers continue."""
        await self._unfollow()
        await asyncio.to_thread(self._server.stop)

    async def poll(self, now_s: float) -> None:
        """Follow the agent's list of devices while the kubelet follows that of the relay.

        If no agent has served for ``hold_s``, the devices are marked as unhealthy.

        Args:
            now_s: monotonic time.
        """
        if self._following is not None and self._following.done():
            following, self._following = self._following, None
            self.withdrawn = following.result()
            self._lost_s = now_s if self._lost_s is None else self._lost_s
        if not self._server.registered:
            await self._unfollow()
        elif self._following is None and self.endpoint is not None:
            self._following = asyncio.create_task(self._follow(self.endpoint))
        if self._lost_s is not None and now_s - self._lost_s >= self._hold_s:
            self._offer([PluginDevice(id=d.id, healthy=False, numa_node=d.numa_node) for d in self._devices])

    async def _unfollow(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def _follow(self, endpoint: Path) -> bool:
        """Offer the agent's devices to the kubelet until the agent's list ends.

        Returns True if the agent ended the list in good order. ``endpoint`` is the socket of the agent's plug-in.
        """
        async with grpc.aio.insecure_channel(address(endpoint), options=channel_options()) as channel:
            listing = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=pb.Empty.SerializeToString,
                response_deserializer=pb.ListAndWatchResponse.FromString,
            )(pb.Empty())
            try:
                async for reply in listing:
                    self._lost_s = None
                    self._offer([_device(one) for one in reply.devices])
            except grpc.aio.AioRpcError:
                return False
        return True

    def _offer(self, devices: list[PluginDevice]) -> None:
        if devices != self._devices:
            self._devices = devices
            self._server.set_devices(devices)

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        """Answer Allocate without the agent, which need not run: the answer depends only on the device IDs."""
        answer = self._answer(device_ids)
        self._loop.call_soon_threadsafe(self._remember, device_ids, answer)
        return answer

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        """Return ``size`` device IDs: those of ``must``, then the lowest of ``available``.

        Low device IDs are preferred so that the same ones are used again, and with them the same CDI spec files.
        """
        return [*must, *sorted(set(available) - set(must))][:size]

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...] = ()) -> None:
        """Have the agent prepare the container; wait for an agent if there is none. Raises the error of the agent."""
        asyncio.run_coroutine_threadsafe(self._pre_start(device_ids), self._loop).result()

    def _remember(self, device_ids: tuple[str, ...], answer: Allocated) -> None:
        key = frozenset(device_ids)
        self._answers[key] = answer.cdi_names
        self._answers.move_to_end(key)
        while len(self._answers) > ANSWERS_KEPT_MAX:
            self._answers.popitem(last=False)

    async def _pre_start(self, device_ids: tuple[str, ...]) -> None:
        until_s = time.monotonic() + self._wait_s
        while True:
            endpoint = self.endpoint
            if endpoint is not None and await self._started_by(endpoint, device_ids):
                return
            if time.monotonic() >= until_s:
                raise CalabashError(
                    f"the agent of this node has not answered for {self._wait_s:g} s, so no container is given devices",
                    reason=Reason.UNREACHABLE,
                    hint="the container starts when the agent is back; see the log of its pod calabash-agent",
                )
            await asyncio.sleep(_AGAIN_S)

    async def _started_by(self, endpoint: Path, device_ids: tuple[str, ...]) -> bool:
        """Have the agent prepare the container; return False if no agent serves the socket. Raises CalabashError."""
        names = self._answers.get(frozenset(device_ids), ())
        metadata = ((ANSWERED_KEY, ",".join(names)),) if names else ()
        async with grpc.aio.insecure_channel(address(endpoint), options=channel_options()) as channel:
            call = channel.unary_unary(
                "/v1beta1.DevicePlugin/PreStartContainer",
                request_serializer=pb.PreStartContainerRequest.SerializeToString,
                response_deserializer=pb.PreStartContainerResponse.FromString,
            )
            try:
                await call(pb.PreStartContainerRequest(devices_ids=device_ids), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() in _UNREACHABLE:
                    return False
                raise CalabashError(error.details() or f"the agent answers {error.code().name}") from error
        return True


def _device(one: pb.Device) -> PluginDevice:
    nodes = one.topology.nodes
    return PluginDevice(id=one.ID, healthy=one.health == "Healthy", numa_node=nodes[0].ID if nodes else -1)
