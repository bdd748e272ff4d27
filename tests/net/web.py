"""A web server of tests inside a station."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from calabash.controllers.lab.station import Station


class Web:
    """A web server in a station that returns its name, and whose health check can be made to fail."""

    def __init__(self, station: Station, name: str, number: int = 8080, *, version: int = 4) -> None:
        self.healthy = True
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                said = name.encode()
                self.send_response(200 if web.healthy or self.path != "/healthz" else 503)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                """Log no requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.socket.close()
        family, anywhere = (socket.AF_INET6, "::") if version == 6 else (socket.AF_INET, "0.0.0.0")
        self._server.socket = station.socket(family, socket.SOCK_STREAM)
        self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.socket.bind((anywhere, number))
        self._server.socket.listen(64)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a check hangs up when it knows enough
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
