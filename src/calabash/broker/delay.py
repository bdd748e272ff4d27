"""TCP forwarder that adds a fixed delay, to measure the effect of a network's round-trip time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

from calabash.broker.addresses import ServerAddress, parse_address

_CHUNK_BYTES = 1 << 18
_UNDER_WAY_MAX = 4096  # chunks under way; bounds the memory of the forwarder


class DelayedLine:
    """TCP forwarder to ``server``, which delays the data in each direction by half of ``rtt_s``.

    The forwarder is a context manager and runs in its own thread until the context is left. Clients connect to
    ``address`` instead of the server.
    """

    def __init__(self, server: str, rtt_s: float) -> None:
        self._server = parse_address(server)
        self._half_s = rtt_s / 2
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delay", daemon=True)
        self.address = ServerAddress("127.0.0.1", 0)

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self.address = ServerAddress.from_socket(listening.result(10).sockets[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        if not self._loop.is_running():
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._server.host, self._server.port)
        except OSError:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):  # the forwarder was stopped
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY_MAX)

        async def deliver() -> None:
            while True:
                due_s, data = await under_way.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        delivering = loop.create_task(deliver())
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await under_way.put((loop.time() + self._half_s, data))
        await under_way.put((loop.time() + self._half_s, b""))
        with contextlib.suppress(OSError):
            await delivering


async def _end_all() -> None:
    """Cancel all tasks of the loop, which closes every connection."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
