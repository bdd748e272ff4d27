"""Small HTTP/1.1 server for kube-scheduler: POST with a JSON body, GET for probes.

It runs in its own event loop and thread, so that it answers while the planner is busy. A client may disconnect while it
waits; the handler is then cancelled. Clients are not authenticated; the server therefore listens on the loopback of the pod
that it shares with kube-scheduler. Closing it while the planner is unhealthy makes kube-scheduler fail at once instead of
waiting for time-outs.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus

import structlog

from calabash.transport.connections import Connections
from calabash.transport.http1 import Bounds, Conversation, HttpQuestion, HttpReply

log = structlog.get_logger(__name__)

# A pod and the names of a hundred thousand nodes; a bind is held in a connection of its own, for every pod of a gang. All
# clients have the same address: the loopback's.
BOUNDS = Bounds(
    body_bytes=32 << 20, held_bytes=128 << 20, connections=1 << 14, per_peer=1 << 14, first_s=120.0, body_s=10.0
)

Handler = Callable[[HttpQuestion], Awaitable[HttpReply]]
"""Cancelled when the caller hangs up."""


class SmallServer:
    """HTTP server in its own thread, which listens only while it is healthy.

    Args:
        healthy: called every ``every_s`` seconds; the server does not listen while it returns False.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        host: str,
        port: int,
        healthy: Callable[[], bool] = lambda: True,
        every_s: float = 1.0,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._handler = handler
        self._host, self._port = host, port
        self._healthy = healthy
        self._every_s = every_s
        self._bounds = bounds
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._connections = Connections(
            most=bounds.connections, per_peer=bounds.per_peer, held_bytes_max=bounds.held_bytes
        )
        self._conversation = Conversation(connections=self._connections, bounds=bounds, answer=self._handled)
        self._open: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="planner-extender", daemon=True)
        self.address = ("", 0)

    def start(self) -> None:
        """Listen. Raises OSError if the address is not available."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Close all connections and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function in the server's event loop."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(callback)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
            self._ready.set()
            if not isinstance(error, OSError):
                log.exception("the extender ended")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        await self._listen()
        self._ready.set()
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self._every_s)
            healthy = self._healthy()
            if not healthy and self._server is not None:
                await self._hang_up()
            elif healthy and self._server is None and not self._stop.is_set():
                try:
                    await self._listen()
                except OSError as error:
                    log.warning("the extender cannot listen again yet", error=str(error))
        await self._hang_up()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, self._host, self._port, limit=self._bounds.head_bytes, backlog=1024
        )
        # With port 0 and all addresses, IPv4 and IPv6 have a port each.
        found = sorted(self._server.sockets, key=lambda one: one.family is not socket.AF_INET)
        self.address = found[0].getsockname()[:2]
        self._port = self.address[1]

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("peername")
        connection = self._connections.open(str(address[0]) if address else "", writer.transport.abort)
        if connection is None:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            await self._conversation.run(reader, writer, connection)
        except (TimeoutError, EOFError, asyncio.LimitOverrunError, OSError):
            pass  # the other side is gone, or speaks something else
        finally:
            self._connections.ended(connection)
            self._open.discard(writer)
            writer.close()

    async def _handled(self, question: HttpQuestion, reader: asyncio.StreamReader) -> HttpReply | None:
        """Return the handler's reply; None if the client disconnected first."""
        answer = asyncio.ensure_future(self._handler(question))
        await asyncio.sleep(0)
        if not answer.done():
            gone = asyncio.ensure_future(reader.read(1))  # nothing may come before the answer but the end
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
                return None
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        try:
            reply = answer.result()
        except Exception as error:
            log.exception("a question was not answered", path=question.path)
            return HttpReply(
                status=HTTPStatus.INTERNAL_SERVER_ERROR, body=str(error).encode(), content_type="text/plain"
            )
        if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:  # a new connection may reach the leader
            return replace(reply, closes=True)
        return reply
