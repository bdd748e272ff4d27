"""The device plug-in as a whole: it serves, registers, and registers again whenever the kubelet has lost it.

Theory of operation: every 200 ms the sockets are looked at. A kubelet that starts removes all sockets of the directory and
makes its own anew: our socket is gone then, and that of the kubelet is another file, be it one of the same inode number. A
kubelet may also drop a plug-in without restarting: kubelets up to 1.36 keep one connection for each resource, and when an
older instance of the plug-in ends they drop the newer one with it. So the rule is about what is seen and not why: a plug-in
whose list no kubelet follows is not registered, and registers. A socket's name is never used twice.

Either way of registration can be taken, never both at once, for the kubelet would connect twice and drop both when one
ends: ``register`` calls the kubelet, ``registry`` leaves a socket where the kubelet looks for plug-ins.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import grpc
import grpc.aio

from calabash.seams.kubelet.channels import address, channel_options
from calabash.seams.kubelet.protocol import PluginDevice, PluginHandler
from calabash.seams.kubelet.service import DevicePluginService, device_list, plugin_options
from calabash.seams.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.seams.kubelet.stubs import pluginregistration_pb2 as registration_pb

DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
PLUGINS_REGISTRY = Path("/var/lib/kubelet/plugins_registry")
_LOOK_S = 0.2
_REGISTER_S = 10.0
_FOLLOW_S = 2.0  # a kubelet that took a registration follows the list at once
_AGAIN_S = (0.2, 1.0)
_STOP_S = 0.5  # a start that is under way may end well, lists have been ended
_VERSION = "v1beta1"


class DevicePluginServer:
    """Serves one resource to the kubelet, from a thread of its own.

    Args:
        resource: the extended resource ("calabash.dev/gpus").
        handler: who answers the kubelet.
        directory: the kubelet's ``device-plugins`` directory; its path leaves room for 40 characters.
        registry: the kubelet's ``plugins_registry`` directory, used when ``way`` is "registry".
        way: how to register.
        on_error: told when a registration fails (once for each different text) and of faults of the handler.
    """

    def __init__(
        self,
        resource: str,
        handler: PluginHandler,
        *,
        directory: Path = DEVICE_PLUGINS,
        registry: Path = PLUGINS_REGISTRY,
        way: Literal["register", "registry"] = "register",
        on_error: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        self._resource, self._handler = resource, handler
        self._directory, self._registry, self._way = directory, registry, way
        self._on_error = on_error
        self._devices = pb.ListAndWatchResponse()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: DevicePluginService | None = None
        self._server: grpc.aio.Server | None = None
        self._announcer: grpc.aio.Server | None = None
        self._socket, self._announced = Path(), Path()
        self._inode = 0
        self._kubelet = (0, 0)
        self._next_try, self._pause, self._follow_by = 0.0, _AGAIN_S[0], 0.0
        self._followed = 0  # when the last registration began
        self._said = ""
        self._stopping = threading.Event()
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-plugin", daemon=True)
        self.registrations = 0

    def start(self) -> None:
        """Begin; returns when the plug-in serves. Whether a kubelet knows it, ``registered`` says."""
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        """End: the kubelet sees all devices unhealthy, containers go on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def set_devices(self, devices: list[PluginDevice]) -> None:
        """The devices from now on; may be called before ``start``. Raises ValueError for a list that no kubelet takes."""
        wanted = device_list(devices)
        self._devices = wanted
        loop, service = self._loop, self._service
        if loop is not None and service is not None and not self._stopping.is_set():
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(service.set_devices, wanted)

    @property
    def registered(self) -> bool:
        """Whether a kubelet follows the list of devices now."""
        service = self._service
        return service is not None and service.streams > 0

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._service = service = DevicePluginService(self._handler, self._on_error)
        service.set_devices(self._devices)
        try:
            while not self._stopping.is_set():
                try:
                    await self._look(service)
                except Exception as error:  # a plug-in that stopped trying would take the node's devices away
                    self._tell(error)
                    self._postpone()
                self._running.set()
                await asyncio.sleep(_LOOK_S)
        finally:
            self._running.set()
            await self._close()
            service.stop()

    async def _look(self, service: DevicePluginService) -> None:
        """Bring about what is missing: the socket, then the registration."""
        if self._server is None or _inode(self._socket) != self._inode:
            await self._close()
            await self._open(service)
        kubelet = _birth(self._directory / "kubelet.sock")
        if kubelet != self._kubelet:
            self._kubelet, self._next_try, self._follow_by = kubelet, 0.0, 0.0
            self._pause = _AGAIN_S[0]
        now = time.monotonic()
        there = kubelet != (0, 0)
        if service.streams and there:
            self._said, self._pause = "", _AGAIN_S[0]
        elif there and now >= self._next_try and (now >= self._follow_by or service.followed > self._followed):
            self._followed = service.followed
            await self._register()

    async def _open(self, service: DevicePluginService) -> None:
        name = f"calabash-{os.getpid()}-{secrets.token_hex(4)}.sock"
        self._socket = self._directory / name
        self._server = await _listen(self._socket, service.handlers())
        self._inode = _inode(self._socket)
        self._next_try = self._follow_by = 0.0

    async def _close(self) -> None:
        if self._service is not None:
            self._service.end_streams()
        for server, socket in ((self._announcer, self._announced), (self._server, self._socket)):
            if server is not None:
                await server.stop(_STOP_S)
                with suppress(OSError):
                    socket.unlink()
        self._announcer = self._server = None

    async def _register(self) -> None:
        if self._way == "registry":
            await self._announce()
        else:
            async with grpc.aio.insecure_channel(
                address(self._directory / "kubelet.sock"), options=channel_options()
            ) as channel:
                call = channel.unary_unary(
                    "/v1beta1.Registration/Register",
                    request_serializer=pb.RegisterRequest.SerializeToString,
                    response_deserializer=pb.Empty.FromString,
                )
                request = pb.RegisterRequest(
                    version=_VERSION,
                    endpoint=self._socket.name,
                    resource_name=self._resource,
                    options=plugin_options(),
                )
                await call(request, timeout=_REGISTER_S)
        self.registrations += 1
        self._follow_by = time.monotonic() + _FOLLOW_S
        self._postpone()

    async def _announce(self) -> None:
        """Leave a new socket in the registry: kubelets ask each socket once."""
        if self._announcer is not None:
            await self._announcer.stop(0)
            with suppress(OSError):
                self._announced.unlink()
        self._announced = self._registry / f"calabash-{os.getpid()}-{secrets.token_hex(4)}-reg.sock"
        unary = grpc.unary_unary_rpc_method_handler
        info, noted = registration_pb.PluginInfo, registration_pb.RegistrationStatusResponse
        methods = {
            "GetInfo": unary(self._info, registration_pb.InfoRequest.FromString, info.SerializeToString),
            "NotifyRegistrationStatus": unary(
                self._noted, registration_pb.RegistrationStatus.FromString, noted.SerializeToString
            ),
        }
        handlers = grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
        self._announcer = await _listen(self._announced, handlers)

    async def _info(self, _request: Any, _context: Any) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type="DevicePlugin", name=self._resource, endpoint=str(self._socket), supported_versions=[_VERSION]
        )

    async def _noted(
        self, request: registration_pb.RegistrationStatus, _context: Any
    ) -> registration_pb.RegistrationStatusResponse:
        if not request.plugin_registered:
            self._tell(RuntimeError(f"the kubelet refuses the device plug-in: {request.error}"))
        return registration_pb.RegistrationStatusResponse()

    def _postpone(self) -> None:
        self._next_try = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _AGAIN_S[1])

    def _tell(self, error: Exception) -> None:
        said = str(error)
        if isinstance(error, grpc.aio.AioRpcError):
            said = f"{error.code().name}: {error.details()}"
            error = RuntimeError(f"the device plug-in could not register with the kubelet: {said}")
        if said != self._said:
            self._said = said
            self._on_error(error)


async def _listen(socket: Path, handlers: grpc.GenericRpcHandler[Any, Any]) -> grpc.aio.Server:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(address(socket))
    await server.start()
    return server


def _birth(path: Path) -> tuple[int, int]:
    """What tells a file from its successor: file systems give a number that has become free to the next file."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
