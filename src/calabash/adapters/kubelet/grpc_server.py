"""What everything that serves a kubelet does alike: a thread with an event loop, sockets, and the announcement in the registry.

Every 200 ms it is looked whether what is served is still there. A socket's name is never used twice.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from calabash.adapters.kubelet.channels import address
from calabash.adapters.kubelet.stubs import pluginregistration_pb2 as pb

STOP_S = 0.5  # a call that is under way may end well
_LOOK_S = 0.2


class ServingThread(ABC):
    """Serves a kubelet from a thread of its own.

    Args:
        name: the thread's.
        on_error: told of what fails, once for each different text.
    """

    def __init__(self, name: str, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said = ""
        self._stopping = threading.Event()
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; returns when it serves. Whether a kubelet knows it, ``registered`` says."""
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        """End; containers go on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    async def _look(self) -> None:
        """Bring about what is missing; what it raises is told, and it is called again."""

    @abstractmethod
    async def _close(self) -> None:
        """Serve nothing more."""

    def _later(self, callback: Callable[..., object], *words: Any) -> None:
        """Have it called on the loop, if there is one."""
        loop = self._loop
        if loop is not None and not self._stopping.is_set():
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(callback, *words)

    def _tell(self, error: Exception) -> None:
        said = str(error)
        if isinstance(error, grpc.aio.AioRpcError):
            said = f"{error.code().name}: {error.details()}"
            error = RuntimeError(f"the {self._thread.name} could not register with the kubelet: {said}")
        if said != self._said:
            self._said = said
            self._on_error(error)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            while not self._stopping.is_set():
                try:
                    await self._look()
                except Exception as error:  # one that stopped trying would take the node's devices away
                    self._tell(error)
                self._running.set()
                await asyncio.sleep(_LOOK_S)
        finally:
            self._running.set()
            await self._close()


class Announcement:
    """A socket in the kubelet's ``plugins_registry``, by which it finds a plug-in. All methods run on a loop.

    Args:
        info: what the plug-in is.
        noted: told of each answer: "" when the kubelet has taken the plug-in, else why not.
    """

    def __init__(self, info: Callable[[], pb.PluginInfo], noted: Callable[[str], None]) -> None:
        self._info, self._noted = info, noted
        self._server: grpc.aio.Server | None = None
        self._socket, self._inode = Path(), 0

    @property
    def there(self) -> bool:
        """Whether the socket is where it was left."""
        return self._server is not None and inode(self._socket) == self._inode

    async def open(self, socket: Path) -> None:
        """Leave the socket; kubelets ask each socket once."""
        await self.close()
        self._socket = socket
        unary = grpc.unary_unary_rpc_method_handler
        methods = {
            "GetInfo": unary(self._answer, pb.InfoRequest.FromString, pb.PluginInfo.SerializeToString),
            "NotifyRegistrationStatus": unary(
                self._heard, pb.RegistrationStatus.FromString, pb.RegistrationStatusResponse.SerializeToString
            ),
        }
        self._server = await listen(
            socket, grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
        )
        self._inode = inode(socket)

    async def close(self) -> None:
        """Take it away: the kubelet then forgets the plug-in."""
        server, self._server = self._server, None
        if server is not None:
            with suppress(OSError):
                self._socket.unlink()
            await server.stop(0)

    async def _answer(self, _request: pb.InfoRequest, _context: Any) -> pb.PluginInfo:
        return self._info()

    async def _heard(self, request: pb.RegistrationStatus, _context: Any) -> pb.RegistrationStatusResponse:
        self._noted("" if request.plugin_registered else request.error or "without a reason")
        return pb.RegistrationStatusResponse()


async def listen(
    socket: Path, *handlers: grpc.GenericRpcHandler[Any, Any], message_bytes_max: int | None = None
) -> grpc.aio.Server:
    """A server on a socket that nobody else has. ``message_bytes_max``: of what it is asked; None: as gRPC has it, 4 MiB."""
    options: list[tuple[str, int]] = [("grpc.so_reuseport", 0)]
    if message_bytes_max is not None:
        options.append(("grpc.max_receive_message_length", message_bytes_max))
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(address(socket))
    await server.start()
    return server


async def stop_server(server: grpc.aio.Server | None, socket: Path) -> None:
    """End a server, if there is one, and remove its socket."""
    if server is not None:
        await server.stop(STOP_S)
        with suppress(OSError):
            socket.unlink()


def own_name() -> str:
    """A part of a socket's name that no other instance has, nor this one a second time."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def inode(path: Path) -> int:
    """0 when it is not there."""
    return birth(path)[0]


def birth(path: Path) -> tuple[int, int]:
    """What tells a file from its successor: file systems give a number that has become free to the next file."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns
