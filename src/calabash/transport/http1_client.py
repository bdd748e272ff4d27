"""HTTP/1.1 client: writes requests and reads answers on a connected socket, with bounds on sizes and a deadline for each wait.

The clients of the pool, the gateway, the remote-device server, the API server, the cluster's usage server and of other web
servers use it; each connects and authenticates itself and turns errors into its own messages. The standard library's HTTP
client is not used because it needs 0.2 ms of processor time for each call, most of it to parse headers with a parser for
mail, and 100 ms to import. This client supports neither redirects nor compression, and treats an answer that uses
another transfer encoding than chunks as an error.

Imported by ``calabash run``: imports nothing slow.
"""

from __future__ import annotations

import select
import socket
import time

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from typing import Self

HEAD_BYTES_MAX = 64 << 10
_LINE_BYTES_MAX = 4096
_INTERIM_MAX = 8
_LENGTH_DIGITS_MAX = 15
_RECEIVE = 1 << 18
_NO_BODY = (204, 304)


class HttpError(OSError):
    """The answer is not valid HTTP, too large, or incomplete."""


class NotHttpError(HttpError):
    """The first line is not that of an answer."""


class ClosedError(HttpError):
    """The server has closed the connection before the end of the answer.

    Args:
        begun: True if a part of the answer had arrived.
    """

    def __init__(self, *, begun: bool) -> None:
        super().__init__("the connection was closed")
        self.begun = begun


def write_request(
    method: str, target: str, headers: Mapping[str, str], body: bytes = b"", *, content_type: str = "application/json"
) -> bytes:
    """Return the bytes of a request; a body is sent with its length and type.

    Args:
        target: path and query.
        headers: header fields, with ``Host``.
        content_type: type of the body; "" if ``headers`` has it.

    Raises:
        ValueError: a part has characters that would make another request of it.
    """
    if not (method.isalpha() and target.startswith("/") and _plain(method) and _plain(target) and " " not in target):
        raise ValueError("the method or the target has characters that are not allowed")
    if not all(_plain(name) and _plain(value) for name, value in headers.items()):
        raise ValueError("a header has characters that are not printable ASCII")
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body and content_type:
        lines.append(f"Content-Type: {content_type}")
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def parse_head(head: bytes) -> tuple[int, dict[str, str], bool]:
    """Return status, headers and True if the server speaks HTTP/1.1; names of headers are in lower case.

    Args:
        head: status line and header fields, without the empty line at the end.

    Raises:
        NotHttpError: the first line is not that of an answer.
        HttpError: the answer has two lengths.
    """
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ", 2)
    if len(words) < 2 or words[0] not in (b"HTTP/1.1", b"HTTP/1.0") or not words[1].isdigit() or len(words[1]) != 3:
        raise NotHttpError(f"not an HTTP answer: {lines[0][:60]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        key, value = name.lower(), value.strip()
        if key == "content-length" and headers.get(key, value) != value:
            raise HttpError("the answer has two lengths")
        headers[key] = value
    return int(words[1]), headers, words[0] == b"HTTP/1.1"


def body_length(headers: Mapping[str, str]) -> int | None:
    """Return the length of the body that the headers state; None if they state none. Raises HttpError."""
    stated = headers.get("content-length")
    if stated is None:
        return None
    if not (stated.isascii() and stated.isdigit()) or len(stated) > _LENGTH_DIGITS_MAX:
        raise HttpError(f"invalid content length {stated[:20]!r}")
    return int(stated)


class ClientConnection:
    """Connection to a server: one request at a time, bodies by length, in chunks, or up to the end of the connection.

    Methods that wait have a ``deadline``, a time of ``time.monotonic()``, and raise TimeoutError when it has passed.
    ``read_head`` may be called again after that. ``status`` and ``headers`` are those of the last answer; names of headers
    are in lower case. After an answer was read to its end, ``reusable`` tells if another request may follow.

    Args:
        line: connected socket, which ``close`` closes.
    """

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._buffer = b""
        self._chunked = self._by_close = False
        self._remaining = 0  # of the body, or of the chunk
        self._interim = 0
        self._ended = True
        self._keep = True
        self.status = 0
        self.headers: dict[str, str] = {}
        self.idle_since = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reusable(self) -> bool:
        """True if the last answer was read to its end and the server keeps the connection open."""
        return self._keep and self._ended and not self._buffer

    def quiet(self) -> bool:
        """Return True if an idle connection has nothing to read: neither data nor the end of the stream."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return not poll.poll(0)

    def send(self, request: bytes, deadline: float) -> None:
        """Send a whole request. A server that refuses early may close the connection; its answer can be read even so."""
        self._socket.settimeout(left_s(deadline))
        self._interim = 0
        try:  # noqa: SIM105 - contextlib is slow to import
            self._socket.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def ask(self, request: bytes, deadline: float, *, bytes_max: int) -> bytes:
        """Send a request and return the body of the answer. Raises OSError, HttpError, TooLargeError."""
        self.send(request, deadline)
        self.read_head(deadline)
        return self.read_body(deadline, bytes_max=bytes_max)

    def read_head(self, deadline: float) -> None:
        """Read status and headers of an answer. Raises OSError, HttpError."""
        while True:
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise HttpError(f"headers longer than {HEAD_BYTES_MAX} bytes")
                try:
                    self._receive(deadline)
                except ClosedError:
                    if self._buffer:
                        parse_head(self._buffer)
                    raise
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            self.status, self.headers, keep = parse_head(head)
            if self.status >= 200:
                self._begin_body(keep=keep)
                return
            self._interim += 1
            if self._interim > _INTERIM_MAX:
                raise HttpError(f"more than {_INTERIM_MAX} interim answers")

    def _begin_body(self, *, keep: bool) -> None:
        encoding = self.headers.get("transfer-encoding")
        if encoding is not None and encoding.lower() != "chunked":
            raise HttpError(f"unsupported transfer encoding {encoding[:20]!r}")
        length = 0 if self.status in _NO_BODY else body_length(self.headers)
        self._chunked = encoding is not None and self.status not in _NO_BODY
        self._by_close = not self._chunked and length is None
        self._remaining = 0 if self._chunked or length is None else length
        self._ended = not self._chunked and length == 0
        self._keep = keep and self.headers.get("connection", "").lower() != "close" and not self._by_close

    def read(self, deadline: float) -> bytes:
        """Return the next bytes of the body; b"" at its end. Raises ClosedError if the connection ends before that."""
        if self._ended:
            return b""
        if self._chunked and not self._remaining and not self._next_chunk(deadline):
            self._ended = True
            return b""
        if not self._buffer:
            try:
                self._receive(deadline)
            except ClosedError:
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

    def read_body(self, deadline: float, *, bytes_max: int) -> bytes:
        """Return the whole body. Raises TooLargeError if it has more than ``bytes_max`` bytes."""
        parts: list[bytes] = []
        size = 0
        while part := self.read(deadline):
            parts.append(part)
            size += len(part)
            if size > bytes_max:
                raise TooLargeError(f"the answer has more than {bytes_max} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

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
        self._socket.settimeout(left_s(deadline))
        part = self._socket.recv(_RECEIVE)
        if not part:
            raise ClosedError(begun=bool(self._buffer) or not self._ended)
        self._buffer = self._buffer + part if self._buffer else part


class TooLargeError(HttpError):
    """The answer is larger than the caller accepts."""


def connect(host: str, port: int, deadline: float, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Return a connection to a server, after its TLS handshake. Raises OSError."""
    return secured(socket.create_connection((host, port), left_s(deadline)), host, deadline, tls)


def secured(line: socket.socket, name: str, deadline: float, tls: ssl.SSLContext | None) -> socket.socket:
    """Return the connection after the TLS handshake with a server of this name; the same without ``tls``. Raises OSError."""
    if tls is None:
        return line
    try:
        line.settimeout(left_s(deadline))
        return tls.wrap_socket(line, server_hostname=name)
    except BaseException:
        line.close()
        raise


def left_s(deadline: float) -> float:
    """Return the seconds until the deadline. Raises TimeoutError if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
