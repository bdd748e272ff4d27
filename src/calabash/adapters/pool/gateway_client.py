"""Client of the pool's API over HTTP or HTTPS to its gateway, with a token."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import calabash
from calabash.adapters.pool.client import ApiClient, WaitCallback
from calabash.adapters.pool.wire import ANSWER_BYTES_MAX, coded, decode_content
from calabash.api.endpoints import VERSION_HEADER
from calabash.model.errors import CalabashError, Reason, cause
from calabash.transport.http1_client import ClientConnection, connect, write_request


def checked_url(url: str) -> str:
    """Return the URL ``https://HOST[:PORT]``, or ``http://`` for this machine. Raises CalabashError(BAD_REQUEST).

    A token is not sent over a network without TLS.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if parts.scheme not in {"http", "https"} or not host or parts.path.strip("/") or parts.query or parts.username:
        raise CalabashError(f"{url} is not the URL of a server", hint="for example https://gpu.example.org:7432")
    if parts.scheme == "http" and not _loopback(host):
        raise CalabashError(
            f"{url} would send the token in the clear", hint="use https://, or a tunnel to a port of this machine"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ServerClient(ApiClient):
    """Client of the pool behind a gateway.

    Args:
        url: as ``checked_url`` returns it.
        token: token of the requesting user; "" for requests that need none.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token

    def __repr__(self) -> str:
        return f"ServerClient({self.url})"

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = 30.0,
        on_wait: WaitCallback | None = None,
    ) -> Any:
        """Make a request; ``on_wait`` is not called. Raises CalabashError: POOL_DOWN, TIMEOUT, or the pool's own reason."""
        parts = urlsplit(self.url)
        headers = {"Host": parts.netloc, "Connection": "close", VERSION_HEADER: calabash.__version__}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = write_request(method, path, headers, coded(body))
        deadline = time.monotonic() + timeout_s
        tls = _tls() if parts.scheme == "https" else None
        try:
            line = connect(parts.hostname or "", parts.port or (80 if tls is None else 443), deadline, tls)
            with ClientConnection(line) as connection:
                content = connection.ask(request, deadline, bytes_max=ANSWER_BYTES_MAX)
        except TimeoutError:
            raise CalabashError(
                f"{self.url} did not answer {method} {path} within {timeout_s:g}s", reason=Reason.TIMEOUT
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise CalabashError(
                f"the certificate of {self.url} is not trusted: {error.verify_message}",
                reason=Reason.NOT_PERMITTED,
                hint="name the certificate of its authority with SSL_CERT_FILE=FILE",
            ) from None
        except OSError as error:
            raise CalabashError(
                f"{self.url} does not answer: {cause(error)}",
                reason=Reason.POOL_DOWN,
                hint="check the address and the network"
                + (", or say https:// where the pool has a certificate" if self.url.startswith("http:") else ""),
            ) from None
        return decode_content(connection.status, content, who=self.url)


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class TokenStore:
    """Tokens of servers in a file that only its owner can read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def token(self, url: str) -> str:
        """Return the token of a server.

        Raises NOT_AUTHENTICATED if there is none, BAD_FILE if others can read the file.
        """
        found = self._read().get(url, "")
        if not found:
            raise CalabashError(
                f"no token for {url} is known", reason=Reason.NOT_AUTHENTICATED, hint=f"calabash login {url}"
            )
        return found

    def store(self, url: str, token: str) -> None:
        """Store the token of a server; an empty token removes it."""
        every = {name: value for name, value in {**self._read(), url: token}.items() if value}
        directory = os.path.dirname(self.path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        part = f"{self.path}.{os.getpid()}"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as sink:
            json.dump(every, sink, indent=1)
        os.replace(part, self.path)

    def _read(self) -> dict[str, str]:
        try:
            with open(self.path) as source:
                mode = os.fstat(source.fileno()).st_mode
                found = json.load(source)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CalabashError(f"{self.path} cannot be read: {cause(error)}", reason=Reason.BAD_FILE) from None
        if mode & 0o077:
            raise CalabashError(
                f"others can read {self.path}, which has tokens", reason=Reason.BAD_FILE, hint=f"chmod 600 {self.path}"
            )
        if not isinstance(found, dict):
            raise CalabashError(f"{self.path} is not a list of servers and tokens", reason=Reason.BAD_FILE)
        return {str(name): str(value) for name, value in found.items()}
