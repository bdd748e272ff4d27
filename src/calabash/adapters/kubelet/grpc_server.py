"""Base of gRPC servers for the kubelet: a thread with an event loop, sockets, and registration in ``plugins_registry``.

Every 200 ms the server checks that its sockets still exist. A socket name is never used twice.
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

STOP_S = 0.5  # seconds for running calls to end
_POLL_S = 0.2


class ServingThread(ABC):
    """Serves a kubelet in its own thread.

    Args:
        name: name of the thread.
        on_error: called for failures, once for each different text.
    """

    def __init__(self, name: str, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said = ""
        self._stopping = threading.Event()
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; return when it serves. ``registered`` tells if a kubelet uses it."""
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        """Stop serving; containers continue."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    async def _poll(self) -> None:
        """Create missing sockets and registrations. Called every 200 ms; an exception is reported to ``on_error``."""

    @abstractmethod
    async def _close(self) -> None:
        """Stop serving."""

    def _later(self, callback: Callable[..., object], *words: Any) -> None:
        """Call a function on the event loop; does nothing if the event loop does not run."""
        loop = self._loop
        if loop is not None and not self._stopping.is_set():
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(callback, *words)

    def _report(self, error: Exception) -> None:
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
                    await self._poll()
                except Exception as error:  # without retries the node would lose its devices
                    self._report(error)
                self._running.set()
                await asyncio.sleep(_POLL_S)
        finally:
            self._running.set()
            await self._close()


class Announcement:
    """Socket in the kubelet's ``plugins_registry``, by which the kubelet finds a plug-in.

    All methods run on an event loop.

    Args:
        info: returns the description of the plug-in.
        noted: called with each answer of the kubelet: "" if it has accepted the plug-in, else the error.
    """

    def __init__(self, info: Callable[[], pb.PluginInfo], noted: Callable[[str], None]) -> None:
        self._info, self._noted = info, noted
        self._server: grpc.aio.Server | None = None
        self._socket, self._inode = Path(), 0

    @property
    def exists(self) -> bool:
        """True if the socket still exists."""
        return self._server is not None and inode(self._socket) == self._inode

    async def open(self, socket: Path) -> None:
        """Create a new socket at the path ``socket``. A kubelet asks each new socket for its plug-in, once."""
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
        """Remove the socket. The kubelet drops the plug-in then."""
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
    """Return a started server on a new socket.

    Args:
        message_bytes_max: largest request; None for gRPC's default of 4 MiB.
    """
    options: list[tuple[str, int]] = [("grpc.so_reuseport", 0)]
    if message_bytes_max is not None:
        options.append(("grpc.max_receive_message_length", message_bytes_max))
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(address(socket))
    await server.start()
    return server


async def stop_server(server: grpc.aio.Server | None, socket: Path) -> None:
    """Stop a server, if there is one, and remove its socket."""
    if server is not None:
        await server.stop(STOP_S)
        with suppress(OSError):
            socket.unlink()


def own_name() -> str:
    """Return a unique text for the name of a socket: neither this nor another instance uses it again."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def inode(path: Path) -> int:
    """Return the inode number of a file; 0 if it does not exist."""
    return birth(path)[0]


def birth(path: Path) -> tuple[int, int]:
    """Return inode number and change time, which identify a file: file systems use free inode numbers again."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns
