"""A small HTTP/1.1 server for one kind of client, kube-scheduler: POST with a JSON body, GET for probes.

It runs in an event loop and a thread of its own, so that it answers whatever else the planner does. Who asks may hang up
while its answer is being waited for; the handler then is cancelled. Sizes and times are bounded. Closing it while the
planner is unwell makes kube-scheduler fail at once instead of waiting for time-outs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger(__name__)

BODY_BYTES_MAX = 32 << 20  # a pod and the names of a hundred thousand nodes
_HEAD_BYTES_MAX = 16 << 10
_IDLE_S = 120.0
_REQUEST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallReply:
    """What is answered."""

    status: int = 200
    body: bytes = b"{}"
    kind: str = "application/json"


Handler = Callable[[str, str, bytes], Awaitable[SmallReply]]
"""(method, path, body) -> reply; cancelled when the caller hangs up."""


class SmallServer:
    """See the module's description.

    Args:
        well: asked every second; while it is False nothing listens.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        well: Callable[[], bool] = lambda: True,
        every_s: float = 1.0,
    ) -> None:
        self._handler = handler
        self._host, self._port, self._tls = host, port, tls
        self._well = well
        self._every_s = every_s
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="planner-extender", daemon=True)
        self.address = ("", 0)

    def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Close everything."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have it called in the server's loop."""
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
            well = self._well()
            if not well and self._server is not None:
                await self._hang_up()
            elif well and self._server is None and not self._stop.is_set():
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
            self._connected, self._host, self._port, ssl=self._tls, limit=_HEAD_BYTES_MAX, backlog=1024
        )
        self.address = self._server.sockets[0].getsockname()[:2]
        self._port = self.address[1]

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            pass  # the other side is gone, or speaks something else
        finally:
            self._open.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _IDLE_S)
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= BODY_BYTES_MAX or "transfer-encoding" in headers:
            await self._reply(
                writer, SmallReply(status=413, body=b"a body of a known length, at most 32 MiB"), keep=False
            )
            return False
        body = await asyncio.wait_for(reader.readexactly(length), _REQUEST_S)
        reply = await self._handled(method, path, body, reader)
        if reply is None:
            return False
        keep = headers.get("connection", "").lower() != "close"
        await self._reply(writer, reply, keep=keep)
        return keep

    async def _handled(self, method: str, path: str, body: bytes, reader: asyncio.StreamReader) -> SmallReply | None:
        """The handler's reply; None when the caller hung up first."""
        answer = asyncio.ensure_future(self._handler(method, path, body))
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
            return answer.result()
        except Exception as error:
            log.exception("a question was not answered", path=path)
            return SmallReply(status=500, body=str(error).encode(), kind="text/plain")

    @staticmethod
    async def _reply(writer: asyncio.StreamWriter, reply: SmallReply, *, keep: bool) -> None:
        head = (
            f"HTTP/1.1 {reply.status} {'OK' if reply.status < 400 else 'Error'}\r\nContent-Type: {reply.kind}\r\n"
            f"Content-Length: {len(reply.body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        )
        writer.write(head.encode() + reply.body)
        await writer.drain()
