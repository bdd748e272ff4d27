"""Device plug-in server with its registration at the kubelet, which is repeated whenever the kubelet has lost it.

Every 200 ms the server checks two sockets, its own and that of the kubelet. A starting kubelet removes all sockets of
the directory and creates its own again. The plug-in's socket is then missing, and the kubelet's socket is a new file,
possibly with the old inode number. A kubelet may also drop a plug-in without restarting: kubelets up to 1.36 keep one
connection for each resource, and if an older instance of the plug-in ends, they drop the newer instance, too. Therefore
a plug-in registers again whenever no kubelet follows its list, whatever the cause.

There are two ways of registration: ``register`` calls the kubelet, and ``registry`` creates a socket where the kubelet
looks for plug-ins. Only one is used at a time, because with both the kubelet would connect twice and drop both
connections when one ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import grpc
import grpc.aio

from calabash.adapters.kubelet.channels import address, channel_options
from calabash.adapters.kubelet.grpc_server import (
    Announcement,
    ServingThread,
    birth,
    inode,
    listen,
    own_name,
    stop_server,
)
from calabash.adapters.kubelet.protocol import PluginDevice, PluginHandler
from calabash.adapters.kubelet.service import DevicePluginService, device_list, plugin_options
from calabash.adapters.kubelet.stubs import deviceplugin_pb2 as pb
from calabash.adapters.kubelet.stubs import pluginregistration_pb2 as registration_pb

DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
PLUGINS_REGISTRY = Path("/var/lib/kubelet/plugins_registry")
_REGISTER_S = 10.0
_FOLLOW_S = 2.0  # time in which a kubelet follows the list of devices after a registration, else it is repeated
_AGAIN_S = (0.2, 1.0)
_VERSION = "v1beta1"


class DevicePluginServer(ServingThread):
    """Serves one resource to the kubelet, in its own thread; when it stops, the kubelet marks all devices unhealthy.

    Args:
        resource: the extended resource ("calabash.dev/gpus").
        handler: answers the kubelet's calls.
        directory: the kubelet's ``device-plugins`` directory. Its path must be at least 40 characters shorter than the
            limit of socket paths.
        registry: the kubelet's ``plugins_registry`` directory, used when ``way`` is "registry".
        way: way of registration: "register" calls the kubelet, "registry" creates a socket that the kubelet finds.
        on_error: called when a registration fails (once for each different text) and for faults of the handler.
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
        super().__init__("device-plugin", on_error)
        self._resource, self._handler = resource, handler
        self._directory, self._registry, self._way = directory, registry, way
        self._devices = pb.ListAndWatchResponse()
        self._service: DevicePluginService | None = None
        self._server: grpc.aio.Server | None = None
        self._announcement = Announcement(self._info, self._noted)
        self._socket = Path()
        self._inode = 0
        self._kubelet = (0, 0)
        self._next_try, self._pause, self._follow_by = 0.0, _AGAIN_S[0], 0.0
        self._followed = 0  # when the last registration began
        self.registrations = 0

    def set_devices(self, devices: list[PluginDevice]) -> None:
        """Set the devices; may be called before ``start``. Raises ValueError for a list that the kubelet would refuse."""
        wanted = device_list(devices)
        self._devices = wanted
        if self._service is not None:
            self._later(self._service.devices.set, wanted)

    @property
    def registered(self) -> bool:
        """True if a kubelet follows the list of devices now."""
        service = self._service
        return service is not None and service.devices.streams > 0

    async def _poll(self) -> None:
        """Create the socket and register, if either is missing."""
        if self._service is None:
            self._service = DevicePluginService(self._handler, self._on_error)
            self._service.devices.set(self._devices)
        service = self._service
        if self._server is None or inode(self._socket) != self._inode:
            await self._shut()
            await self._open(service)
        kubelet = birth(self._directory / "kubelet.sock")
        if kubelet != self._kubelet:
            self._kubelet, self._next_try, self._follow_by = kubelet, 0.0, 0.0
            self._pause = _AGAIN_S[0]
        now = time.monotonic()
        there = kubelet != (0, 0)
        if service.devices.streams and there:
            self._said, self._pause = "", _AGAIN_S[0]
        elif there and now >= self._next_try and (now >= self._follow_by or service.devices.begun > self._followed):
            self._followed = service.devices.begun
            self._postpone()
            await self._register()

    async def _open(self, service: DevicePluginService) -> None:
        self._socket = self._directory / f"calabash-{own_name()}.sock"
        self._server = await listen(self._socket, service.handlers())
        self._inode = inode(self._socket)
        self._next_try = self._follow_by = 0.0

    async def _close(self) -> None:
        await self._shut()
        if self._service is not None:
            self._service.stop()

    async def _shut(self) -> None:
        if self._service is not None:
            self._service.devices.end()
        await self._announcement.close()
        server, self._server = self._server, None
        await stop_server(server, self._socket)

    async def _register(self) -> None:
        if self._way == "registry":
            await self._announcement.open(self._registry / f"calabash-{own_name()}-reg.sock")
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

    def _info(self) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type="DevicePlugin", name=self._resource, endpoint=str(self._socket), supported_versions=[_VERSION]
        )

    def _noted(self, refused: str) -> None:
        if refused:
            self._report(RuntimeError(f"the kubelet refuses the device plug-in: {refused}"))

    def _postpone(self) -> None:
        self._next_try = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _AGAIN_S[1])
