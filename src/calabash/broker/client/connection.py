"""HTTP client of the remote-device server: one request on each connection, and a timeout for every wait.

Over the network the connection uses TLS 1.3. The client knows the fingerprint of the server's certificate from the
token file, and compares it before it sends the token. On the server's own machine, the owner uses a Unix socket
instead.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import calabash
from calabash.adapters.pool.client import ApiClient, WaitCallback
from calabash.adapters.pool.wire import ANSWER_BYTES_MAX, broken_by, coded, decode_content
from calabash.api.endpoints import VERSION_HEADER
from calabash.broker.addresses import ServerAddress
from calabash.broker.fingerprints import fingerprint_of_der
from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1_client import ClientConnection, HttpError, write_request
from calabash.transport.resolving import connect_first, resolve

CONNECT_S = 5.0
_HEADERS = {"Host": "localhost", "Connection": "close", VERSION_HEADER: calabash.__version__}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteServerClient(ApiClient):
    """Client of a server on the network; ``certificate`` is the expected fingerprint of the server's certificate."""

    name: str
    address: ServerAddress
    certificate: str
    token: str = field(repr=False)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = 30.0,
        on_wait: WaitCallback | None = None,
    ) -> Any:
        """Send a request and return the decoded reply; ``on_wait`` is not called.

        Raises:
            CalabashError: POOL_DOWN if the server does not answer in time, or the reason of the server's refusal.
        """
        headers = {**_HEADERS, "Authorization": f"Bearer {self.token}"} if self.token else _HEADERS
        question = write_request(method, path, headers, coded(body))
        who = f"server {self.name}"
        return decode_content(*_asked(who, self._connect, question, timeout_s), who=who)

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + CONNECT_S
        plain = connect_first(resolve(self.address.host, self.address.port, deadline), deadline)
        try:
            plain.settimeout(CONNECT_S)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # the fingerprint is checked below
            context.verify_mode = ssl.CERT_NONE
            secured = context.wrap_socket(plain)
        except TimeoutError:
            plain.close()
            raise
        except (ssl.SSLError, OSError) as error:
            plain.close()
            raise ConnectionError(f"not a remote GPU server (TLS handshake failed): {error}") from None
        shown = secured.getpeercert(binary_form=True) or b""
        if fingerprint_of_der(shown) != self.certificate:
            secured.close()
            raise CalabashError(
                f"{self.address} is not the server of the token: its certificate has another fingerprint",
                reason=Reason.NOT_PERMITTED,
                hint="check the address; if the server was set up anew, ask its owner for a new token",
            )
        return secured


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSocketClient(ApiClient):
    """Client of the server on this machine, for its owner, through the Unix socket at ``path``."""

    path: Path

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = 30.0,
        on_wait: WaitCallback | None = None,
    ) -> Any:
        """Send a request and return the decoded reply; raises the same errors as :meth:`RemoteServerClient.call`."""
        question = write_request(method, path, _HEADERS, coded(body))
        return decode_content(*_asked("the server", self._connect, question, timeout_s), who="the server")

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(str(self.path))
        except PermissionError:
            connection.close()
            raise CalabashError(
                f"the server at {self.path.parent} belongs to another user",
                reason=Reason.NOT_PERMITTED,
                hint="ask its owner",
            ) from None
        except OSError as error:
            connection.close()
            raise CalabashError(
                f"no server answers at {self.path.parent} ({error.strerror})",
                reason=Reason.POOL_DOWN,
                hint="start it with `calabash remote server up --listen HOST:PORT`",
            ) from None
        return connection


def _asked(who: str, connect: Callable[[], socket.socket], question: bytes, timeout_s: float) -> tuple[int, bytes]:
    bound_s = CONNECT_S
    try:
        with ClientConnection(connect()) as connection:
            bound_s = timeout_s
            content = connection.ask(question, time.monotonic() + timeout_s, bytes_max=ANSWER_BYTES_MAX)
            return connection.status, content
    except HttpError as error:
        raise broken_by(who, error) from None
    except TimeoutError:
        raise CalabashError(
            f"{who} did not answer within {bound_s:g}s",
            reason=Reason.POOL_DOWN,
            hint="check its address and the network; on the server: calabash remote server status",
        ) from None
    except OSError as error:
        raise CalabashError(
            f"{who} does not answer: {error.strerror or error}",
            reason=Reason.POOL_DOWN,
            hint="check its address and the network; on the server: calabash remote server status",
        ) from None
