"""Web server that receives notices, for tests: records requests and sends given answers."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Requests and answers of the server. ``statuses`` are its next answers; ``always`` is the answer after them."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.always = 200
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    def ids(self) -> list[str]:
        """Return the IDs of the notices, by which receivers recognise repetitions."""
        return [headers["webhook-id"] for headers, _ in list(self.taken)]


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run the server for the block."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.taken.append(({n.lower(): v for n, v in self.headers.items()}, body))
            self.send_response(made.statuses.pop(0) if made.statuses else made.always)
            self.send_header("location", "http://127.0.0.1:1/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        def finish_request(self, request: Any, client_address: Any) -> None:
            with suppress(ssl.SSLError, ConnectionError):  # a client that does not trust it hangs up
                if tls is not None:
                    request = tls.wrap_socket(request, server_side=True)
                super().finish_request(request, client_address)
                if tls is not None:
                    request.close()

    with Server(("127.0.0.1", 0), Handler) as server:
        made.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}/hook?key=1"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
