"""The one port: who comes in is looked at without being read, and goes to the worker of a lease or to the HTTPS server.

A connection has a few seconds to show its first record. It is peeked at only, and the kernel wakes us when as much is there
as the record says it has: whoever sends byte by byte costs a wake-up, and whoever sends nothing a descriptor until the time
is over. Of those who have not shown what they are only so many are kept; when another comes, the oldest one of the local user
or address that has most of them goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable

from calabash.adapters.host.tcp_peers import local_peer
from calabash.broker.server.first_record import (
    HELLO_BYTES_MAX,
    NO_SUCH_LEASE,
    MoreNeeded,
    SessionBegins,
    SomethingElse,
    classify,
)

FIRST_RECORD_S = 5.0
HANDOVER_S = 5.0
UNKNOWN_MAX = 2048
_WAKES_MAX = 20
_PAUSE_S = 0.01
_GREETING = struct.Struct("<8sHHI16s32s")  # native/remote/wire/greeting.h
_HANDOVER_KIND, _GREETING_VERSION, _GREETED = 2, 1, 0

Entrance = Callable[[str, str, str], tuple[str, str] | None]
Passed = Callable[[socket.socket], Awaitable[None]]


class FrontDoor:
    """Serves a listening socket.

    Args:
        entrance: where a session of a lease goes, and with which key; None for a lease that is not.
        pass_on: takes connections that are no program's.
        count: told what each connection was.
    """

    def __init__(
        self, listener: socket.socket, *, entrance: Entrance, pass_on: Passed, count: Callable[[str], None]
    ) -> None:
        self._listener = listener
        self._entrance = entrance
        self._pass_on = pass_on
        self._count = count
        self._unknown: dict[asyncio.Task[None], str] = {}  # in the order in which they came, with their peers
        listener.setblocking(False)

    async def serve(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listener)
                except OSError:  # no descriptors left, or it was gone already
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if len(self._unknown) >= UNKNOWN_MAX:
                    self._drop_one()
                task = loop.create_task(self._receive(connection, f"{address[0]}:{address[1]}"))
                self._unknown[task] = local_peer(connection, str(address[0]))
                task.add_done_callback(lambda done: self._unknown.pop(done, None))
                await asyncio.sleep(0)  # a connection that waits already is accepted without a pause for others
        finally:
            for task in list(self._unknown):
                task.cancel()

    def _drop_one(self) -> None:
        ((largest, _),) = Counter(self._unknown.values()).most_common(1)
        oldest = next(task for task, peer in self._unknown.items() if peer == largest)
        del self._unknown[oldest]
        oldest.cancel()
        self._count("dropped")

    async def _receive(self, connection: socket.socket, peer: str) -> None:
        with contextlib.closing(connection):
            try:
                async with asyncio.timeout(FIRST_RECORD_S):
                    found = await self._look(connection)
            except (TimeoutError, OSError):
                self._count("silent")
                return
            task = asyncio.current_task()
            if task is not None:
                self._unknown.pop(task, None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if isinstance(found, SessionBegins):
                self._count(await self._hand_over(connection, found, peer))
            else:
                self._count("command line")
                await self._pass_on(connection.dup())

    async def _look(self, connection: socket.socket) -> SessionBegins | SomethingElse:
        """Raises OSError for one who leaves before."""
        for _ in range(_WAKES_MAX):
            try:
                there = connection.recv(HELLO_BYTES_MAX, socket.MSG_PEEK)
            except BlockingIOError:
                await _readable(connection)
                continue
            if not there:
                break
            found = classify(there)
            if not isinstance(found, MoreNeeded):
                return found
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, found.size)
            await _readable(connection)
            await asyncio.sleep(_PAUSE_S)  # who has left is readable for ever
        raise ConnectionError

    async def _hand_over(self, connection: socket.socket, found: SessionBegins, peer: str) -> str:
        """What came of it, as it is counted."""
        entrance = self._entrance(found.lease, found.session, peer)
        if entrance is None:
            with contextlib.suppress(OSError):
                connection.send(NO_SUCH_LEASE)
                connection.shutdown(socket.SHUT_WR)
            return "unknown lease"
        path, key = entrance
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(HANDOVER_S):
                status = await hand_over(connection, path, bytes.fromhex(found.session), bytes.fromhex(key))
        except (TimeoutError, OSError):
            return "worker away"
        return "session" if status == _GREETED else "refused by worker"


async def hand_over(connection: socket.socket, path: str, session: bytes, key: bytes) -> int:
    """Give a program's connection to the host of a lease's workers; its answer, 0 when it has taken it. Raises OSError."""
    loop = asyncio.get_running_loop()
    greeting = _GREETING.pack(b"CALABASH", _GREETING_VERSION, _HANDOVER_KIND, 0, session, key)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as host:
        host.setblocking(False)
        await loop.sock_connect(host, path)
        if socket.send_fds(host, [greeting], [connection.fileno()]) != len(greeting):
            raise ConnectionError
        answer = await loop.sock_recv(host, 1)
    if not answer:
        raise ConnectionError
    return answer[0]


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    there: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _tell, there)
    try:
        await there
    finally:
        loop.remove_reader(connection)


def _tell(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)
