"""Access to the API server from a kubeconfig: clusters, users, contexts, tokens, certificates, credential programs."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from calabash.adapters.host.children import run_program, search_path
from calabash.adapters.kube.http.access import (
    ApiAccess,
    Authorization,
    TlsFiles,
    TokenFile,
    bad_access,
    load_certificate,
    read_file,
    tls_context,
)
from calabash.model.errors import cause

_PROGRAM_S = 60.0
_EARLY_S = 60.0  # a credential is renewed this long before it expires
_EXEC_VERSIONS = frozenset({"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"})


class _Shape(msgspec.Struct, frozen=True, rename="kebab"):
    pass


class _Variable(_Shape, frozen=True):
    name: str
    value: str


class _Program(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None


class _Cluster(_Shape, frozen=True):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(_Shape, frozen=True):
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    program: _Program | None = msgspec.field(name="exec", default=None)


class _UserContext(_Shape, frozen=True):
    cluster: str
    user: str = ""
    namespace: str = "default"


class _NamedCluster(_Shape, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(_Shape, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(_Shape, frozen=True):
    name: str
    context: _UserContext


class _File(_Shape, frozen=True):
    clusters: tuple[_NamedCluster, ...] | None = ()
    users: tuple[_NamedUser, ...] | None = ()
    contexts: tuple[_NamedContext, ...] | None = ()
    current_context: str = ""


class _ProgramStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    expiration_timestamp: str | None = None


class _ProgramReply(msgspec.Struct, frozen=True):
    status: _ProgramStatus


def _content(text: str | bytes) -> Any:
    """Decode JSON or YAML to plain data. Raises ValueError.

    The YAML library is imported only when it is needed, to save memory: agents in pods read no YAML.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        import yaml  # noqa: PLC0415
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def from_kubeconfig(path: Path, context: str = "") -> ApiAccess:
    """Return the access that a context of a kubeconfig file describes; "" for the file's current context.

    Raises CalabashError(BAD_FILE) if the file cannot be used.
    """
    try:
        # A timestamp or number where a string must be is refused by msgspec, not turned into one.
        file = msgspec.convert(_content(read_file(path)), _File)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise bad_access(f"{path}: {cause(error)}") from error
    wanted = context or file.current_context
    chosen = next((c.context for c in file.contexts or () if c.name == wanted), None)
    if chosen is None:
        raise bad_access(f"{path} has no context {wanted!r}")
    cluster = next((c.cluster for c in file.clusters or () if c.name == chosen.cluster), None)
    if cluster is None:
        raise bad_access(f"{path} has no cluster {chosen.cluster!r}")
    user = next((u.user for u in file.users or () if u.name == chosen.user), None)
    if user is None and chosen.user:
        raise bad_access(f"{path} has no user {chosen.user!r}")
    return _access(path, cluster, user or _User(), chosen.namespace)


def _access(path: Path, cluster: _Cluster, user: _User, namespace: str) -> ApiAccess:
    url = urlsplit(cluster.server)
    try:
        port = url.port
    except ValueError as error:
        raise bad_access(f"{path}: server {cluster.server!r}: {error}") from error
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise bad_access(f"{path}: server {cluster.server!r} is not a URL")
    if cluster.proxy_url:
        raise bad_access(f"{path}: a proxy is not supported")
    return ApiAccess(
        host=url.hostname,
        port=port or (443 if url.scheme == "https" else 80),
        prefix=url.path.rstrip("/"),
        namespace=namespace,
        authorization=_authorization(path, user),
        tls=_tls(path.parent, cluster, user) if url.scheme == "https" else None,
        server_name=cluster.tls_server_name,
    )


def _authorization(path: Path, user: _User) -> Authorization:
    if user.token_file:
        return TokenFile(path.parent / user.token_file)
    if user.token:
        header = f"Bearer {user.token}"
    elif user.program is not None:
        return _ProgramToken(path.parent, user.program)
    elif user.username:
        header = "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
    else:
        header = ""
    return lambda _refused: header


def _tls(base: Path, cluster: _Cluster, user: _User) -> Callable[[], ssl.SSLContext]:
    verify = not cluster.insecure_skip_tls_verify
    inline = cluster.certificate_authority_data or user.client_certificate_data or user.client_key_data
    authority = base / cluster.certificate_authority if cluster.certificate_authority else None
    files = (base / user.client_certificate, base / user.client_key) if user.client_certificate else None
    if not inline:
        return TlsFiles(authority, files, verify=verify)
    pem = _decoded(cluster.certificate_authority_data) if cluster.certificate_authority_data else b""
    if not pem and authority is not None:
        pem = read_file(authority)
    context = tls_context(pem.decode(), verify=verify)
    if user.client_certificate_data or user.client_certificate:
        certificate = _decoded(user.client_certificate_data) or read_file(base / user.client_certificate)
        key = _decoded(user.client_key_data) or read_file(base / user.client_key)
        _load_from_memory(context, certificate, key)
    return lambda: context


def _load_from_memory(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key into a context.

    OpenSSL can read them from files only. They are passed in memory files, so that the key is not written to the disk.
    """
    descriptors = []
    try:
        for body in (certificate, key):
            descriptors.append(os.memfd_create("calabash-credential"))
            os.write(descriptors[-1], body)
        load_certificate(context, *(Path(f"/proc/self/fd/{descriptor}") for descriptor in descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_access(f"a certificate in the kubeconfig is not base64: {error}") from error


class _ProgramToken:
    """Token from a credential program, which is run again when the token expires or is refused."""

    def __init__(self, base: Path, program: _Program) -> None:
        if program.api_version not in _EXEC_VERSIONS:
            raise bad_access(f"credential programs of API version {program.api_version!r} are not supported")
        self._program = program
        # Only a path with a slash is relative to the file, as kubectl has it; a bare word is the name of a program.
        self._base = base.absolute()
        self._command = str(self._base / program.command) if "/" in program.command else program.command
        self._lock = threading.Lock()
        self._header, self._until = "", 0.0

    def __call__(self, refused: bool) -> str:
        with self._lock:
            if refused or not self._header or time.time() >= self._until:
                status = self._ask()
                if not status.token:
                    raise bad_access(f"{self._command} returned no token; certificates from programs are not supported")
                self._header = f"Bearer {status.token}"
                self._until = _ends(status.expiration_timestamp)
            return self._header

    def _ask(self) -> _ProgramStatus:
        program = self._program
        asked = {"apiVersion": program.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = os.environ | {"PATH": search_path()} | {v.name: v.value for v in program.env or ()}
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(asked).decode()
        command = [self._command, *(program.args or ())]
        try:
            done = run_program(command, directory=self._base, environment=environment, timeout_s=_PROGRAM_S)
            if done.returncode != 0:
                raise bad_access(f"{self._command} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
            return msgspec.json.decode(done.stdout, type=_ProgramReply).status
        except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, UnicodeError) as error:
            raise bad_access(f"{self._command}: {cause(error)}") from error


def _ends(timestamp: str | None) -> float:
    if not timestamp:
        return float("inf")
    try:
        return datetime.fromisoformat(timestamp).timestamp() - _EARLY_S
    except ValueError:
        return 0.0
