"""HTTP/1.1 client connection to an API server: one request at a time, bodies by length or in chunks.

The standard library's HTTP client is not used because it needs 0.2 ms of processor time for each call, most of it to
parse headers with a parser for mail. This client needs a fifth of that time. It does not support redirects, trailers
and compression, and treats an answer that uses them as an error.
"""

from __future__ import annotations

import select
import socket
import time

from calabash.adapters.kube.http.access import ApiAccess

_HEAD_BYTES_MAX = 64 << 10
_LINE_BYTES_MAX = 4096
_RECEIVE = 1 << 18
_CONNECT_S = 5.0
_NO_BODY = frozenset({204, 304})


class HttpError(Exception):
    """The answer is not valid HTTP, or incomplete."""


class HttpConnection:
    """Connection to the API server.

    Methods that wait have a ``deadline``, a time of ``time.monotonic()``, and raise TimeoutError when it has passed.

    After an answer was read to its end, ``reusable`` tells if another request may follow. The kernel's probes detect a
    dead peer within about 25 s, however long a read may wait.
    """

    def __init__(self, access: ApiAccess, deadline: float) -> None:
        line = socket.create_connection((access.host, access.port), min(_left(deadline), _CONNECT_S))
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
            if access.tls is not None:
                line = access.tls().wrap_socket(line, server_hostname=access.server_name or access.host)
        except BaseException:
            line.close()
            raise
        self._socket = line
        self._poll = select.poll()
        self._poll.register(line.fileno(), select.POLLIN)
        self._buffer = b""
        self._chunked = self._by_close = False
        self._remaining = 0  # of the body, or of the chunk
        self._ended = True
        self._keep = True
        self.status = 0
        self.retry_after_s = 0.0
        self.idle_since = 0.0

    @property
    def reusable(self) -> bool:
        """True if the last answer was read to its end and the server keeps the connection open."""
        return self._keep and self._ended and not self._buffer

    def quiet(self) -> bool:
        """Return True if an idle connection has nothing to read: neither data nor the end of the stream."""
        return not self._poll.poll(0)

    def send(self, request: bytes, deadline: float) -> None:
        """Send a whole request."""
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(request)

    def read_head(self, deadline: float) -> None:
        """Read status and headers of an answer; sets ``status`` and ``retry_after_s``."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _HEAD_BYTES_MAX:
                raise HttpError(f"headers longer than {_HEAD_BYTES_MAX} bytes")
            self._receive(deadline)
        lines = self._buffer[:end].split(b"\r\n")
        self._buffer = self._buffer[end + 4 :]
        first = lines[0].split(b" ", 2)
        if len(first) < 2 or first[0] not in {b"HTTP/1.1", b"HTTP/1.0"} or not first[1].isdigit():
            raise HttpError(f"not an HTTP answer: {lines[0][:60]!r}")
        self.status = int(first[1])
        if self.status < 200:  # an interim answer
            self.read_head(deadline)
            return
        self._read_headers(lines[1:], keep=first[0] == b"HTTP/1.1")

    def _read_headers(self, lines: list[bytes], *, keep: bool) -> None:
        self._keep, self._ended, self._chunked, self.retry_after_s = keep, False, False, 0.0
        length = -1
        for line in lines:
            name, _, value = line.partition(b":")
            match name.lower():
                case b"content-length":
                    if not value.strip().isdigit():
                        raise HttpError(f"invalid content length {value[:20]!r}")
                    length = int(value)
                case b"transfer-encoding":
                    if value.strip().lower() != b"chunked":
                        raise HttpError(f"unsupported transfer encoding {value[:20]!r}")
                    self._chunked = True
                case b"connection":
                    self._keep = keep and value.strip().lower() != b"close"
                case b"retry-after":
                    self.retry_after_s = float(value) if value.strip().isdigit() else 0.0
        if self.status in _NO_BODY:
            length = 0
        self._remaining = 0 if self._chunked else max(length, 0)
        self._by_close = not self._chunked and length < 0
        self._ended = not self._chunked and length == 0
        self._keep = self._keep and not self._by_close

    def read(self, deadline: float) -> bytes:
        """Return the next bytes of the body; b"" at its end. Raises HttpError if the connection ends before that."""
        if self._ended:
            return b""
        if self._chunked and not self._remaining and not self._next_chunk(deadline):
            self._ended = True
            return b""
        if not self._buffer:
            try:
                self._receive(deadline)
            except HttpError:
                if not self._by_close:
                    raise
                self._ended = True
                return b""
        if self._by_close:
            part, self._buffer = self._buffer, b""
            return part
        part, self._buffer = self._buffer[: self._remaining], self._buffer[self._remaining :]
        self._remaining -= len(part)
        if self._chunked and not self._remaining:
            self._line(deadline)
        elif not self._chunked:
            self._ended = not self._remaining
        return part

    def cut(self) -> None:
        """Shut the connection down while another thread may read from it."""
        # The plain socket's shutdown, because that of the TLS layer frees the session while another thread reads.
        socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection's descriptor."""
        self._keep = False
        self._socket.close()

    def _next_chunk(self, deadline: float) -> bool:
        size = self._line(deadline).partition(b";")[0].strip()
        try:
            self._remaining = int(size, 16)
        except ValueError as error:
            raise HttpError(f"invalid chunk size {size[:20]!r}") from error
        if self._remaining < 0:
            raise HttpError(f"invalid chunk size {size[:20]!r}")
        if self._remaining:
            return True
        while self._line(deadline):  # trailers
            pass
        return False

    def _line(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _LINE_BYTES_MAX:
                raise HttpError(f"a line longer than {_LINE_BYTES_MAX} bytes")
            self._receive(deadline)
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _receive(self, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        part = self._socket.recv(_RECEIVE)
        if not part:
            raise HttpError("the connection was closed")
        self._buffer = self._buffer + part if self._buffer else part


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
