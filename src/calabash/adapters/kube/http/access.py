"""Address and credentials of the API server: a pod's service account, or a kubeconfig.

Other programs replace tokens and certificates on disk from time to time. A token is read again after a minute, and when
the API server refuses it. Certificates are read again for a new connection if their files have changed.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calabash.model.errors import CalabashError, Reason, cause

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REREAD_S = 60.0
_FILE_BYTES_MAX = 1 << 20

Authorization = Callable[[bool], str]  # returns the header; True: the last one was refused, read it again


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """Address and credentials of an API server.

    Args:
        host: host name or IP address.
        port: TCP port.
        prefix: path before the paths of the API; "" for none.
        namespace: default namespace of the caller.
        authorization: returns the Authorization header; called with True if the API server has refused the last one.
        tls: returns the TLS context for a new connection; None for plain HTTP.
        server_name: name in the server's certificate; "" if it is ``host``.
    """

    host: str
    port: int
    prefix: str
    namespace: str
    authorization: Authorization
    tls: Callable[[], ssl.SSLContext] | None
    server_name: str = ""


class TokenFile:
    """Bearer token in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._header, self._until = "", 0.0

    def __call__(self, refused: bool) -> str:
        with self._lock:
            if refused or time.monotonic() >= self._until:
                self._header = f"Bearer {read_file(self._path).decode().strip()}"
                self._until = time.monotonic() + _REREAD_S
            return self._header


class TlsFiles:
    """TLS context from files that other programs may replace. It is created again when a file has changed.

    Args:
        authority: PEM file of trusted certificates; None for the system's.
        client: files of the client's certificate and key.
        verify: False to accept any server certificate.
    """

    def __init__(self, authority: Path | None, client: tuple[Path, Path] | None = None, *, verify: bool = True) -> None:
        self._authority, self._client, self._verify = authority, client, verify
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._seen: list[tuple[int, int]] = []

    def __call__(self) -> ssl.SSLContext:
        with self._lock:
            seen = [_identity(path) for path in (self._authority, *(self._client or ())) if path is not None]
            if self._context is None or seen != self._seen:
                authority = read_file(self._authority).decode() if self._authority is not None else ""
                self._context = tls_context(authority, verify=self._verify)
                if self._client is not None:
                    load_certificate(self._context, *self._client)
                self._seen = seen
            return self._context


def tls_context(authority: str, *, verify: bool) -> ssl.SSLContext:
    """Return a TLS context.

    Args:
        authority: PEM text of the trusted certificates; "" for the system's.
        verify: False to accept any server certificate.

    Raises CalabashError(BAD_FILE) if the text cannot be read.
    """
    try:
        context = ssl.create_default_context(cadata=authority or None)
    except ssl.SSLError as error:
        raise bad_access(f"the certificate authority cannot be read: {cause(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Private authorities are often made without the extensions that this flag demands; Kubernetes' own clients allow it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Add the client's certificate to a context. Raises CalabashError(BAD_FILE)."""
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise bad_access(f"the client certificate {certificate} cannot be used: {cause(error)}") from error


def in_cluster(directory: Path = SERVICE_ACCOUNT) -> ApiAccess:
    """Return the access of a pod's service account. Raises CalabashError(BAD_FILE) outside of a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdigit():
        raise bad_access("KUBERNETES_SERVICE_HOST is not set, so this process is not in a pod")
    return ApiAccess(
        host=host,
        port=int(port),
        prefix="",
        namespace=read_file(directory / "namespace").decode().strip(),
        authorization=TokenFile(directory / "token"),
        tls=TlsFiles(directory / "ca.crt"),
    )


def read_file(path: Path) -> bytes:
    """Return the content of a file of at most 1 MiB. Raises CalabashError(BAD_FILE)."""
    try:
        with path.open("rb") as source:
            body = source.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise bad_access(f"{path}: {error.strerror}") from error
    if len(body) > _FILE_BYTES_MAX:
        raise bad_access(f"{path}: more than {_FILE_BYTES_MAX} bytes")
    return body


def bad_access(what: str) -> CalabashError:
    """Return the error for missing or unusable access to the API server; ``what`` is the cause."""
    return CalabashError(
        f"cannot access an API server: {what}",
        reason=Reason.BAD_FILE,
        hint="run it in a pod with a service account, or name a kubeconfig (--kubeconfig, $KUBECONFIG)",
    )


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise bad_access(f"{path}: {error.strerror}") from error
    return found.st_ino, found.st_mtime_ns
