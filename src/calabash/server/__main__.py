"""``python -I -m calabash.server``: started by the pool, which tells it on standard input what to serve and where.

It takes over the descriptor that listens, reads what only its first user may read (a TLS key), gives up its rights, and
serves until it is told to end or standard input ends: then the pool is no more, however it went.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import msgspec
import uvicorn

from calabash.api.gateway import GatewayOrder
from calabash.seams.pool.streams import PoolStreams
from calabash.server.application import gateway_application
from calabash.server.guard import Application, Message
from calabash.server.rights import give_up
from calabash.server.serving import adopted, gateway_server, tls_context
from calabash.server.settings import Gateway

ORDER_BYTES_MAX = 1 << 20
TRIED = ("/login", "/nowhere", "/", "/v1/status", "/v1/nowhere")


def main() -> int:
    """Serve until the pool ends."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(ORDER_BYTES_MAX), type=GatewayOrder)
    console = order.console
    directory, name = os.path.split(order.pool)
    os.chdir(directory)  # the directories above it may be closed to whom we become
    application = gateway_application(Gateway.of(console, PoolStreams(name), credential=order.credential))
    asyncio.run(_tried(application))
    server = gateway_server(
        application,
        console.limits,
        tls=tls_context(console.certificate, console.key) if console.certificate else None,
    )
    listener = adopted(order.listener)
    give_up(order.user)
    with listener:
        asyncio.run(_serve(server, listener))
    return 0


async def _tried(application: Application) -> None:
    """Ask for a few things that need no pool: what is imported on the way may not be readable later."""
    for path in TRIED:

        async def nothing() -> Message:
            return {"type": "http.disconnect"}

        async def ignored(_: Message) -> None:
            return

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        headers = [(b"host", b"localhost"), (b"cookie", b"calabash_session=0"), (b"accept", b"text/html")]
        await application({**scope, "headers": headers, "scheme": "http", "state": {}}, nothing, ignored)


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _left_alone, server)
    await server.serve(sockets=[listener])


def _left_alone(server: uvicorn.Server) -> None:
    """Nothing more is said on standard input: that it can be read means that it has ended."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    server.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
