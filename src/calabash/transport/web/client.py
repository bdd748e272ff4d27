"""HTTP/1.1 client for external web servers: one deadline for a whole request, bounded responses, no redirects.

The name is resolved once, and the client connects to the addresses that it has checked, so a name that resolves to another
address a moment later does not evade the check. The certificate is verified for the name.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - loaded before the process gives up its rights
import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from calabash.model.errors import CalabashError, Reason, cause
from calabash.transport.http1_client import ClientConnection, secured, write_request
from calabash.transport.resolving import AddressInfo, connect_first, resolve
from calabash.transport.web.addresses import Address, AddressRule

ANSWER_BYTES_MAX = 256 << 10
URL_CHARACTERS_MAX = 2048
ADDRESSES_MAX = 4  # that are tried of one host


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
            request = _request(method, parts, body, headers or {})
            with ClientConnection(self._connected(parts, deadline)) as connection:
                content = connection.ask(request, deadline, bytes_max=self._bytes_max)
                return WebAnswer(status=connection.status, content=content, headers=connection.headers)
        except TimeoutError:
            raise CalabashError(
                f"{parts.hostname} did not answer within {self._timeout_s:g}s", reason=Reason.TIMEOUT
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise CalabashError(
                f"the certificate of {parts.hostname} is not trusted: {error.verify_message}", reason=Reason.UNREACHABLE
            ) from None
        except (OSError, ValueError) as error:
            raise CalabashError(
                f"{parts.hostname} does not answer: {cause(error)}", reason=Reason.UNREACHABLE
            ) from None

    def _connected(self, parts: SplitResult, deadline: float) -> socket.socket:
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        secure = parts.scheme == "https"
        permits = self._rule.permits if secure else self._rule.named
        permitted = [one for one in resolve(host, port, deadline) if permits(_address(one))]
        if not permitted:
            raise CalabashError(
                f"{host} may not be reached{'' if secure else ' without TLS'}",
                reason=Reason.NOT_PERMITTED,
                hint="it is not a public address" if secure else "use https://",
            )
        line = connect_first(permitted[:ADDRESSES_MAX], deadline)
        return secured(line, host, deadline, self._tls if secure else None)


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


def _request(method: str, parts: SplitResult, body: bytes, headers: Mapping[str, str]) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    named = {
        "Host": parts.netloc,
        "User-Agent": "calabash",
        "Accept-Encoding": "identity",
        "Connection": "close",
        **headers,
    }
    return write_request(method, target, named, body, content_type="")


def _address(found: AddressInfo) -> Address:
    return ipaddress.ip_address(str(found[4][0]).partition("%")[0])
