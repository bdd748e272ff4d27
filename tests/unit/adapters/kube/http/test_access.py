"""Access to an API server: typical kubeconfigs, service accounts, tokens that are replaced on disk, and TLS."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.adapters.kube.http.test_transport import MAP
from tests.unit.adapters.kube.world import answer

from calabash.adapters.kube import HttpKubeClient, KubeError, load_client
from calabash.adapters.kube.http.access import TokenFile, in_cluster
from calabash.adapters.kube.http.kubeconfig import from_kubeconfig
from calabash.adapters.kube.objects.core import CONFIG_MAP
from calabash.model.errors import CalabashError, Reason


def b64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a certificate authority and the certificates of a server and of a client; return their directory."""
    where = tmp_path_factory.mktemp("keys")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=where, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca")
    for name, alternative in (("server", "DNS:kube.internal"), ("client", "DNS:client")):
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (where / "ext").write_text(f"subjectAltName={alternative}\n")
        sign = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *sign)
    return where


@pytest.fixture
def tls_server(keys: Path) -> Iterator[tuple[int, list[Any]]]:
    """Yield the port of a TLS server, and a list of the client certificates that it received."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(keys / "ca.crt"))
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[Any] = []

    def serve() -> None:
        while True:
            try:
                plain = listener.accept()[0]
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as line:
                    seen.append(line.getpeercert())
                    while line.recv(65536):
                        line.sendall(answer(MAP))
            except OSError:
                plain.close()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], seen
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any], **context: str) -> Path:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
        "current-context": "x",
        "preferences": {},
    }
    path.write_text(yaml.safe_dump(body))
    return path


def test_files_beside_the_kubeconfig_and_texts_within_it_are_the_same(
    keys: Path, tls_server: tuple[int, list[Any]]
) -> None:
    port, seen = tls_server
    server = {"server": f"https://127.0.0.1:{port}", "tls-server-name": "kube.internal"}
    files = ({"certificate-authority": "ca.crt"}, {"client-certificate": "client.crt", "client-key": "client.key"})
    texts = (
        {"certificate-authority-data": b64(keys / "ca.crt")},
        {"client-certificate-data": b64(keys / "client.crt"), "client-key-data": b64(keys / "client.key")},
    )
    for cluster, user in (files, texts):
        path = kubeconfig(keys / "config", server | cluster, user, namespace="mine")
        client = load_client(path)
        assert client.namespace == "mine"
        assert client.get(CONFIG_MAP, "a", "ns") is not None
    assert [found["subject"][0][0][1] for found in seen] == ["client", "client"]


def test_a_server_whose_name_or_authority_is_wrong_is_not_talked_to(
    keys: Path, tls_server: tuple[int, list[Any]], tmp_path: Path
) -> None:
    port, _seen = tls_server
    server = {"server": f"https://127.0.0.1:{port}"}
    for cluster in ({"certificate-authority": str(keys / "ca.crt")}, {"tls-server-name": "kube.internal"}):
        client = HttpKubeClient(from_kubeconfig(kubeconfig(tmp_path / "c", server | cluster, {})), timeout_s=60)
        with pytest.raises(KubeError, match="certificate verify failed") as caught:
            client.get(CONFIG_MAP, "a", "ns")
        assert caught.value.reason is Reason.API_DOWN
    trusting = kubeconfig(tmp_path / "c", server | {"insecure-skip-tls-verify": True}, {})
    assert load_client(trusting).get(CONFIG_MAP, "a", "ns") is not None


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{",
        "clusters: 7",
        "current-context: absent",
        "contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x",
        "clusters: [{name: c, cluster: {server: 7}}]",
        "!!python/object/apply:os.system ['true']",
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path: Path, body: str) -> None:
    (tmp_path / "c").write_text(body)
    with pytest.raises(CalabashError) as caught:
        from_kubeconfig(tmp_path / "c")
    assert caught.value.reason is Reason.BAD_FILE
    assert "kubeconfig" in caught.value.hint


@pytest.mark.parametrize("server", ["ftp://x", "x", "https://x:port", "https://"])
def test_a_server_that_is_no_address_is_refused(tmp_path: Path, server: str) -> None:
    with pytest.raises(CalabashError, match="server"):
        from_kubeconfig(kubeconfig(tmp_path / "c", {"server": server}, {}))


def test_another_context_than_the_current_one_can_be_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "c", {"server": "http://h:81/prefix/"}, {"token": "t"})
    access = from_kubeconfig(path, "x")
    assert (access.host, access.port, access.prefix, access.tls) == ("h", 81, "/prefix", None)
    assert access.authorization(False) == "Bearer t"
    with pytest.raises(CalabashError, match="no context 'y'"):
        from_kubeconfig(path, "y")


def test_a_name_and_password_are_sent_as_such(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "c", {"server": "http://h"}, {"username": "u", "password": "p"})
    assert from_kubeconfig(path).authorization(False) == "Basic " + base64.b64encode(b"u:p").decode()


def program(tmp_path: Path, script: str, version: str = "v1") -> Path:
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    user = {
        "exec": {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": "./tool",
            "args": ["a"],
            "env": [{"name": "E", "value": "e"}],
            "interactiveMode": "Never",
        }
    }
    return kubeconfig(tmp_path / "c", {"server": "http://h"}, user)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_program_gives_tokens_and_is_asked_again_when_one_is_refused(tmp_path: Path, version: str) -> None:
    reply = '{\\"status\\":{\\"token\\":\\"$1-$E-$n\\",\\"expirationTimestamp\\":\\"2100-01-01T00:00:00Z\\"}}'
    asked = 'case "$KUBERNETES_EXEC_INFO" in *ExecCredential*) ;; *) exit 1;; esac'
    script = f'{asked}\necho x >> {tmp_path}/n; n=$(wc -l < {tmp_path}/n); echo "{reply}"'
    access = from_kubeconfig(program(tmp_path, script, version))
    assert [access.authorization(refused) for refused in (False, False, True)] == [
        "Bearer a-e-1",
        "Bearer a-e-1",
        "Bearer a-e-2",
    ]


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo no >&2; exit 3", "ended with 3: no"), ("echo '{'", "tool"), ("echo '{\"status\":{}}'", "no token")],
    ids=["fails", "nonsense", "tokenless"],
)
def test_a_program_that_gives_no_token_says_why(tmp_path: Path, script: str, said: str) -> None:
    access = from_kubeconfig(program(tmp_path, script))
    with pytest.raises(CalabashError, match=said):
        access.authorization(False)


def test_a_service_account_is_read_again_when_its_token_is_refused_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Path
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "namespace").write_text("mine\n")
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_bytes((keys / "ca.crt").read_bytes())
    access = in_cluster(tmp_path)
    assert (access.host, access.port, access.namespace) == ("::1", 6443, "mine")
    assert access.authorization(False) == "Bearer one"
    (tmp_path / "token").write_text("two")
    assert access.authorization(False) == "Bearer one"
    assert access.authorization(True) == "Bearer two"
    (tmp_path / "token").write_text("three")
    monkeypatch.setattr("calabash.adapters.kube.http.access._REREAD_S", -1.0)
    access.authorization(True)
    (tmp_path / "token").write_text("four")
    assert access.authorization(False) == "Bearer four"


def test_an_authority_that_was_replaced_is_trusted_with_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Path
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "h")
    for name in ("namespace", "token"):
        (tmp_path / name).write_text("x")
    (tmp_path / "ca.crt").write_bytes((keys / "ca.crt").read_bytes())
    tls = in_cluster(tmp_path).tls
    assert tls is not None
    first = tls()
    assert tls() is first
    (tmp_path / "new").write_bytes((keys / "client.crt").read_bytes())
    os.replace(tmp_path / "new", tmp_path / "ca.crt")
    assert tls() is not first


def test_outside_a_pod_there_is_no_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CalabashError, match="not in a pod"):
        in_cluster(tmp_path)
    with pytest.raises(CalabashError):
        TokenFile(tmp_path / "absent")(False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(CalabashError, match="absent"):
        load_client()
