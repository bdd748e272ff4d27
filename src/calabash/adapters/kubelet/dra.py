"""A driver of dynamic resource allocation as a whole: it serves, and leaves a socket where the kubelet looks for plug-ins.

Theory of operation: the kubelet watches ``plugins_registry``, asks each socket there what it is, and connects to the service
that it names; a kubelet that starts asks all sockets that it finds. So nothing has to be done when it restarts; a socket that
somebody has removed is left anew under another name. Several instances may serve at once, each with sockets of its own: the
kubelet calls the one that came last, and goes back to another when that one has ended. An instance that was killed leaves
its sockets, behind which nobody answers; the next one removes them.
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
# The first one that a kubelet knows is the one that it calls; those of health are looked for by kubelets that know them.
_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class DraServer(ServingThread):
    """Serves one driver to the kubelet, from a thread of its own.

    Args:
        driver: the driver's name ("calabash.dev").
        handler: who answers the kubelet.
        plugins: the kubelet's ``plugins`` directory; the driver has a directory in it.
        registry: the kubelet's ``plugins_registry`` directory.
        on_error: told when the kubelet refuses us (once for each different text) and of faults of the handler.
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
        """All devices of the driver from now on; may be called before ``start``."""
        wanted = health_list(devices)
        if self._running.is_set():
            self._later(self._service.health.set, wanted)
        else:
            self._service.health.value = wanted

    @property
    def registered(self) -> bool:
        """Whether the kubelet has taken us since our sockets are there."""
        return self._is_known

    async def _look(self) -> None:
        if self._server is None or inode(self._socket) != self._inode or not self._announcement.there:
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
        """First nobody new is let in, then what is under way may end."""
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
            self._tell(RuntimeError(f"the kubelet refuses the driver {self._driver}: {refused}"))
        else:
            self._said = ""
            self.registrations += 1


def _remove_dead(path: Path) -> None:
    """Remove a socket that nobody serves."""
    with suppress(OSError), closing(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
