"""Entry point of the gateway process (``python -I -m calabash.gateway``), which the pool starts.

The pool starts the process with its own user, passes it a listening socket, and writes an order with the settings to
its standard input. The process first reads the files that only this user may read, such as a TLS key. It then drops its
privileges and serves until it gets a signal or standard input ends. Standard input ends when the pool has ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import msgspec

from calabash.adapters.pool.streams import PoolStreams
from calabash.api import endpoints
from calabash.api.gateway import GatewayOrder
from calabash.gateway.application import gateway_application
from calabash.gateway.oidc.login import OidcLogin
from calabash.gateway.serving.privileges import drop_privileges
from calabash.gateway.serving.request_guard import Application, Message
from calabash.gateway.serving.server import adopted, gateway_server, tls_context
from calabash.gateway.sessions.store import Question, Sessions
from calabash.platform.home.logs import configure
from calabash.transport.uvicorn_server import HttpServer

ORDER_BYTES_MAX = 1 << 20
WARM_UP_PATHS = ("/login", "/nowhere", "/", endpoints.SHOW_STATUS.path, f"{endpoints.ROOT}/nowhere")


def main() -> int:
    """Run the gateway until the pool ends; return the exit status."""
    configure()
    order = msgspec.json.decode(sys.stdin.buffer.readline(ORDER_BYTES_MAX), type=GatewayOrder)
    console = order.console
    directory, name = os.path.split(order.pool)
    os.chdir(directory)  # the parent directories may be closed to the user that is switched to
    limits = console.limits
    pool = PoolStreams(name, connections=limits.waiting + limits.watchers, share=limits.waiting_per_user)
    sessions = Sessions(order.credential)
    oidc = OidcLogin(console.oidc, credential=order.credential) if console.oidc.issuer else None
    application = gateway_application(console, pool, credential=order.credential, sessions=sessions, oidc=oidc)
    asyncio.run(_warm_up(application, sessions, pool))
    server = gateway_server(
        application,
        console.limits,
        proxies=console.proxies,
        tls=tls_context(console.certificate, console.key) if console.certificate else None,
    )
    listener = adopted(order.listener)
    drop_privileges(order.user)
    with listener:
        asyncio.run(_serve(server, listener))
    return 0


async def _warm_up(application: Application, sessions: Sessions, pool: PoolStreams) -> None:
    """Send some requests to the application, so that all modules are imported before privileges are dropped.

    Afterwards, the files of the modules may not be readable. The requests need no answer of the pool.
    """
    for path in WARM_UP_PATHS:

        async def body() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def ignored(_: Message) -> None:
            return

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        headers = [(b"host", b"127.0.0.1"), (b"accept", b"text/html")]
        proved = sessions.example(Question(method="GET", host="127.0.0.1", target=path))
        for given in ([], [(name.encode(), value.encode()) for name, value in proved.items()]):
            shown = {"headers": headers + given, "scheme": "http", "state": {}}
            await application({**scope, **shown}, body, ignored)
    pool.close()  # its connections belong to the event loop of this call


async def _serve(server: HttpServer, listener: socket.socket) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _stop_at_end_of_input, server)
    await server.serve(sockets=[listener])


def _stop_at_end_of_input(server: HttpServer) -> None:
    """Stop the server. Called when standard input is readable, which means its end: the pool writes only the order."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
