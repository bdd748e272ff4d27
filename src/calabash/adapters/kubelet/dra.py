"""Server of a driver of dynamic resource allocation (DRA) with its registration at the kubelet.

The kubelet watches ``plugins_registry``, asks each socket there for its plug-in, and connects to the service that the
plug-in names; a starting kubelet asks all sockets that it finds. Nothing has to be done when the kubelet restarts; a socket
that was removed is created again under another name. Several instances may serve at once, each with its own sockets:
the kubelet calls the newest, and another when that one has ended. An instance that was killed leaves its sockets, which
the next one removes.
"""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import grpc.aio

from calabash.adapters.kubelet.claim_service import CLAIM_MESSAGE_BYTES_MAX, ClaimService, health_list
from calabash.adapters.kubelet.grpc_server import Announcement, ServingThread, inode, listen, own_name, stop_server
from calabash.adapters.kubelet.protocol import ClaimHandler, DeviceHealth
from calabash.adapters.kubelet.server import PLUGINS_REGISTRY
from calabash.adapters.kubelet.stubs import pluginregistration_pb2 as registration_pb

PLUGINS = Path("/var/lib/kubelet/plugins")
# The kubelet calls the first version that it knows; newer kubelets also use the services of health.
_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class DraServer(ServingThread):
    """Serves one driver to the kubelet, in its own thread.

    Args:
        driver: the driver's name ("calabash.dev").
        handler: prepares and unprepares claims.
        plugins: the kubelet's ``plugins`` directory; the driver has a directory in it.
        registry: the kubelet's ``plugins_registry`` directory.
        on_error: called when the kubelet refuses the driver (once for each different text) and for faults of the
            handler.
    """

    def __init__(
        self,
        driver: str,
        handler: ClaimHandler,
        *,
        plugins: Path = PLUGINS,
        registry: Path = PLUGINS_REGISTRY,
        on_error: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        super().__init__("dra-plugin", on_error)
        self._driver = driver
        self._directory, self._registry = plugins / driver, registry
        self._service = ClaimService(handler, on_error)
        self._server: grpc.aio.Server | None = None
        self._announcement = Announcement(self._info, self._noted)
        self._socket, self._inode = Path(), 0
        self._is_known = False
        self.registrations = 0

    def set_health(self, devices: Sequence[DeviceHealth]) -> None:
        """Set the health of all devices of the driver; may be called before ``start``."""
        wanted = health_list(devices)
        if self._running.is_set():
            self._later(self._service.health.set, wanted)
        else:
            self._service.health.value = wanted

    @property
    def registered(self) -> bool:
        """True if the kubelet has accepted the driver since its sockets were created."""
        return self._is_known

    async def _poll(self) -> None:
        if self._server is None or inode(self._socket) != self._inode or not self._announcement.exists:
            await self._shut()
            await self._open()

    async def _open(self) -> None:
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for left in (*self._directory.glob("dra-*.sock"), *self._registry.glob(f"{self._driver}-*-reg.sock")):
            _remove_dead(left)
        name = own_name()
        self._socket = self._directory / f"dra-{name}.sock"
        self._server = await listen(self._socket, *self._service.handlers(), message_bytes_max=CLAIM_MESSAGE_BYTES_MAX)
        self._inode = inode(self._socket)
        await self._announcement.open(self._registry / f"{self._driver}-{name}-reg.sock")

    async def _close(self) -> None:
        await self._shut()
        self._service.stop()

    async def _shut(self) -> None:
        """Withdraw the registration first, then let running calls end."""
        self._is_known = False
        await self._announcement.close()
        self._service.health.end()
        server, self._server = self._server, None
        await stop_server(server, self._socket)

    def _info(self) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type="DRAPlugin", name=self._driver, endpoint=str(self._socket), supported_versions=_VERSIONS
        )

    def _noted(self, refused: str) -> None:
        self._is_known = not refused
        if refused:
            self._report(RuntimeError(f"the kubelet refuses the driver {self._driver}: {refused}"))
        else:
            self._said = ""
            self.registrations += 1


def _remove_dead(path: Path) -> None:
    """Remove a socket on which no process listens."""
    with suppress(OSError), closing(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
