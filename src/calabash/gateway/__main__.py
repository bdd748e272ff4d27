"""``python -I -m calabash.gateway``: started by the pool, which tells it on standard input what to serve and where.

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

from calabash.adapters.pool.streams import PoolStreams
from calabash.api.gateway import GatewayOrder
from calabash.gateway.application import gateway_application
from calabash.gateway.serving.privileges import give_up
from calabash.gateway.serving.request_guard import Application, Message
from calabash.gateway.serving.server import adopted, gateway_server, tls_context
from calabash.gateway.sessions.store import Question
from calabash.gateway.settings import Gateway
from calabash.platform.home.logs import configure

ORDER_BYTES_MAX = 1 << 20
TRIED = ("/login", "/nowhere", "/", "/v1/status", "/v1/nowhere")


def main() -> int:
    """Serve until the pool ends."""
    configure()
    order = msgspec.json.decode(sys.stdin.buffer.readline(ORDER_BYTES_MAX), type=GatewayOrder)
    console = order.console
    directory, name = os.path.split(order.pool)
    os.chdir(directory)  # the directories above it may be closed to whom we become
    limits = console.limits
    pool = PoolStreams(name, connections=limits.waiting + limits.watchers, share=limits.waiting_per_user)
    gateway = Gateway.of(console, pool, credential=order.credential)
    application = gateway_application(gateway)
    asyncio.run(_tried(application, gateway))
    server = gateway_server(
        application,
        console.limits,
        proxies=console.proxies,
        tls=tls_context(console.certificate, console.key) if console.certificate else None,
    )
    listener = adopted(order.listener)
    give_up(order.user)
    with listener:
        asyncio.run(_serve(server, listener))
    return 0


async def _tried(application: Application, gateway: Gateway) -> None:
    """Ask for a few things that need no pool: what is imported on the way may not be readable later."""
    for path in TRIED:

        async def body() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def ignored(_: Message) -> None:
            return

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        headers = [(b"host", b"127.0.0.1"), (b"accept", b"text/html")]
        proved = gateway.sessions.example(Question(method="GET", host="127.0.0.1", target=path))
        for given in ([], [(name.encode(), value.encode()) for name, value in proved.items()]):
            shown = {"headers": headers + given, "scheme": "http", "state": {}}
            await application({**scope, **shown}, body, ignored)
    gateway.pool.close()  # its connections belong to the event loop of this call


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _left_alone, server)
    await server.serve(sockets=[listener])


def _left_alone(server: uvicorn.Server) -> None:
    """Nothing more is said on standard input: that it can be read means that it has ended."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    server.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
