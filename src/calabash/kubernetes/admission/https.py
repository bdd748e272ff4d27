"""A small HTTPS server for one kind of question: a bounded POST that is answered from memory.

Nobody holds more than a connection. The certificate is read from a context that may be loaded again (``between_handshakes``):
connections that stand are not touched, new ones get the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from socket import socket
from typing import Any

from calabash.kubernetes.http1 import (
    Bounds,
    HttpQuestion,
    HttpReply,
    RefusedError,
    read_head,
    read_question,
    write_reply,
)

BOUNDS = Bounds(body_bytes=8 << 20)  # twice what an API server takes for one object, for reviews carry two
HANDSHAKE_S = 5.0
CHANGED_S = 0.5

Handler = Callable[[HttpQuestion], Awaitable[HttpReply]]


class HttpsServer:
    """Serves a listening socket from a thread of its own until it is stopped.

    Args:
        listener: bound and listening; it is closed at the end.
        context: the certificate; None speaks plain HTTP, for tests.
        handler: called for one request after the other of a connection; what it raises is answered with 500.
        report: told of faults of the handler.
        bounds: what one client may cost.
        admits: whether whoever has this certificate, as ``ssl`` decodes it, is listened to.
    """

    def __init__(
        self,
        listener: socket,
        context: ssl.SSLContext | None,
        handler: Handler,
        *,
        report: Callable[[Exception], None] | None = None,
        bounds: Bounds = BOUNDS,
        admits: Callable[[Mapping[str, Any] | None], bool] | None = None,
    ) -> None:
        self._listener = listener
        self._context = context
        self._handler = handler
        self._report = report
        self._bounds = bounds
        self._admits = admits
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="admission", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Begin; returns when questions are taken."""
        self._thread.start()
        self._started.wait(10)

    def stop(self, within_s: float = 5.0) -> None:
        """Take no more questions, let those that are being answered finish, end."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(within_s)

    def between_handshakes(self, change: Callable[[], None]) -> None:
        """Have the context changed by the thread that begins handshakes, so that none sees half of it.

        What ``change`` raises is raised here. Before the start and after the end it is done at once.
        """
        done: Future[None] = Future()

        def now() -> None:
            try:
                change()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        try:
            if self._loop is None:
                now()
            else:
                self._loop.call_soon_threadsafe(now)
        except RuntimeError:  # it has ended
            now()
        while not done.done() and self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                done.exception(CHANGED_S)
        if done.done():
            done.result()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(
            self._connected,
            sock=self._listener,
            ssl=self._context,
            limit=self._bounds.head_bytes,
            backlog=1024,
            ssl_handshake_timeout=HANDSHAKE_S if self._context is not None else None,
        )
        self._started.set()
        await self._stopping.wait()
        server.close()
        for task in list(self._idle):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=2)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            known = self._admits is None or self._admits(writer.get_extra_info("peercert"))
            if known and len(self._connections) <= self._bounds.connections:
                await self._converse(reader, writer, task)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # gone, silent, too slow, or we are to end
        finally:
            self._connections.discard(task)
            self._idle.discard(task)
            writer.transport.abort()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        while self._stopping is not None and not self._stopping.is_set():
            self._idle.add(task)
            head = await read_head(reader, self._bounds)
            self._idle.discard(task)
            try:
                question, keep = await read_question(head, reader, self._bounds)
                reply = await self._reply(question)
            except RefusedError as refused:
                reply, keep = HttpReply(status=refused.status), False
            await write_reply(writer, reply, self._bounds, keep=keep)
            if not keep:
                return

    async def _reply(self, question: HttpQuestion) -> HttpReply:
        try:
            return await self._handler(question)
        except Exception as error:
            if self._report is not None:
                self._report(error)
            return HttpReply(status=HTTPStatus.INTERNAL_SERVER_ERROR)
