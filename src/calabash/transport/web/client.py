"""HTTP/1.1 client for external web servers: one deadline for a whole request, bounded responses, no redirects.

The name is resolved once, and the client connects to the addresses that it has checked, so a name that resolves to another
address a moment later does not evade the check. The certificate is verified for the name.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - loaded before the process gives up its rights
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

import h11

from calabash.model.errors import CalabashError, Reason, cause
from calabash.transport.web.addresses import Address, AddressRule

ANSWER_BYTES_MAX = 256 << 10
URL_CHARACTERS_MAX = 2048
_RECEIVE = 64 << 10
_RESOLVING = threading.BoundedSemaphore(16)  # the library's resolver cannot be told when to give up


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAnswer:
    """Response of a server; names of headers are in lower case."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class WebClient:
    """HTTP client for addresses that a rule permits. Safe to use from several threads; keeps no connections.

    Args:
        rule: permitted addresses; without TLS only those that an administrator allowed.
        authority: PEM file with the CA of the servers' certificates; empty: the CAs of the system.
        timeout_s: longest time of a whole request.
        bytes_max: largest body of a response.

    Raises CalabashError(BAD_FILE) if the authority has no certificates.
    """

    def __init__(
        self, *, rule: AddressRule, authority: str = "", timeout_s: float = 10.0, bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self._rule = rule
        self._timeout_s, self._bytes_max = timeout_s, bytes_max
        try:
            self._tls = ssl.create_default_context(cafile=authority or None)
        except (OSError, ssl.SSLError) as error:
            raise CalabashError(f"{authority} has no certificates: {cause(error)}", reason=Reason.BAD_FILE) from None
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2

    def ask(self, method: str, url: str, body: bytes = b"", *, headers: Mapping[str, str] | None = None) -> WebAnswer:
        """Send a request; return the response with any status.

        Raises CalabashError: BAD_REQUEST for an invalid URL, NOT_PERMITTED for an address that the rule does not permit,
        UNREACHABLE, TIMEOUT.
        """
        deadline = time.monotonic() + self._timeout_s
        parts = checked_url(url)
        try:
            with self._connected(parts, deadline) as line:
                return self._exchange(line, _question(method, parts, body, headers or {}), body, deadline)
        except TimeoutError:
            raise CalabashError(
                f"{parts.hostname} did not answer within {self._timeout_s:g}s", reason=Reason.TIMEOUT
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise CalabashError(
                f"the certificate of {parts.hostname} is not trusted: {error.verify_message}", reason=Reason.UNREACHABLE
            ) from None
        except (OSError, h11.ProtocolError) as error:
            raise CalabashError(
                f"{parts.hostname} does not answer: {cause(error)}", reason=Reason.UNREACHABLE
            ) from None

    def _connected(self, parts: SplitResult, deadline: float) -> socket.socket:
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        found = _resolved(host, port, deadline)
        secure = parts.scheme == "https"
        permitted = [a for a in found if (self._rule.permits(a) if secure else self._rule.named(a))]
        if not permitted:
            raise CalabashError(
                f"{host} may not be reached{'' if secure else ' without TLS'}",
                reason=Reason.NOT_PERMITTED,
                hint="it is not a public address" if secure else "use https://",
            )
        line = _connection(permitted, port, deadline)
        if not secure:
            return line
        try:
            line.settimeout(_left(deadline))
            return self._tls.wrap_socket(line, server_hostname=host)
        except BaseException:
            line.close()
            raise

    def _exchange(self, line: socket.socket, question: h11.Request, body: bytes, deadline: float) -> WebAnswer:
        talk = h11.Connection(h11.CLIENT)
        sent = talk.send(question) or b""
        sent += (talk.send(h11.Data(data=body)) or b"") if body else b""
        sent += talk.send(h11.EndOfMessage()) or b""
        line.settimeout(_left(deadline))
        line.sendall(sent)
        answer: h11.Response | None = None
        content = bytearray()
        while True:
            event = talk.next_event()
            if event is h11.NEED_DATA:
                line.settimeout(_left(deadline))
                talk.receive_data(line.recv(_RECEIVE))
            elif isinstance(event, h11.Response):
                answer = event
            elif isinstance(event, h11.Data):
                content += event.data
                if len(content) > self._bytes_max:
                    raise OSError(f"its answer has more than {self._bytes_max} bytes")
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)) or event is h11.PAUSED:
                break
        if answer is None:
            raise OSError("it hung up")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
        return WebAnswer(status=answer.status_code, content=bytes(content), headers=headers)


def checked_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raises CalabashError(BAD_REQUEST) if it is not absolute, or has a user or a fragment."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    except ValueError:
        parts, port, host = urlsplit(""), None, ""
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= URL_CHARACTERS_MAX
    wrong = parts.username is not None or parts.password is not None or parts.fragment or port == 0
    if not plain or parts.scheme not in {"https", "http"} or not host or wrong or "%" in host:
        raise CalabashError(
            f"{url[:80]!r} is not a URL that can be asked",
            hint="https://HOST/PATH, without a user, of at most 2048 plain characters",
        )
    return parts


def _question(method: str, parts: SplitResult, body: bytes, headers: Mapping[str, str]) -> h11.Request:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    named = {
        "Host": parts.netloc,
        "User-Agent": "calabash",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Content-Length": str(len(body)),
        **headers,
    }
    return h11.Request(method=method, target=target, headers=list(named.items()))


def _resolved(host: str, port: int, deadline: float) -> list[Address]:
    """Return the addresses of a name in the order of the system's resolver. Raises TimeoutError, OSError."""
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    if not _RESOLVING.acquire(timeout=_left(deadline)):
        raise TimeoutError
    found: list[Address] = []
    failed: list[OSError] = []

    def resolve() -> None:
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in known)
        except OSError as error:
            failed.append(error)
        finally:
            _RESOLVING.release()

    thread = threading.Thread(target=resolve, name="resolver", daemon=True)
    thread.start()
    thread.join(_left(deadline))
    if thread.is_alive():
        raise TimeoutError
    if failed:
        raise failed[0]
    return found


def _connection(addresses: list[Address], port: int, deadline: float) -> socket.socket:
    """Connect to the first of up to four addresses that accepts the connection. Raises OSError."""
    failed: OSError = OSError("it has no address")
    for address in addresses[:4]:
        try:
            return socket.create_connection((str(address), port), _left(deadline))
        except TimeoutError:
            raise
        except OSError as error:
            failed = error
    raise failed


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
