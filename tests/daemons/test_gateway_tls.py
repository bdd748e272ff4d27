"""Gateway over TLS: a pool of another machine is used if its certificate is valid, and not otherwise."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certificates import server_context
from tests.daemons.terminal import Terminal
from tests.daemons.world import World, until

CONSOLE = """[console]
certificate = "{0}/tls.crt"
key = "{0}/tls.key"
"""


def _serve(world: World, directory: Path) -> str:
    """Start a pool with the certificate in ``directory``; return its address."""
    world.home.mkdir(exist_ok=True)
    (world.home / "pool.toml").write_text(CONSOLE.format(directory))
    world.up()
    url: str = world.client.get("/v1/status")["console"]
    assert url.startswith("https://127.0.0.1:")
    return url


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world("1xT4", options=("--console", "127.0.0.1:0"))


def _elsewhere(tmp_path: Path, **environment: str) -> Terminal:
    """Return the terminal of a user without a pool of its own."""
    return Terminal(tmp_path / "nothing", tmp_path, HOME=str(tmp_path / "user"), **environment)


def test_who_trusts_the_certificate_logs_in_and_works_and_nobody_else_does(world: World, tmp_path: Path) -> None:
    _, authority = server_context(tmp_path / "tls")
    url = _serve(world, tmp_path / "tls")
    code = world.client.post("/v1/tokens", {"login": True})["secret"]
    far = _elsewhere(tmp_path, SSL_CERT_FILE=authority)
    assert "logged in" in far("login", url, stdin=f"{url}/login#{code}\n").stdout
    assert [d["model"] for d in far.items("--server", url, "smi")] == ["Tesla T4"]
    outsider = _elsewhere(tmp_path)
    said = outsider.refused(4, "--server", url, "ps")
    assert "is not trusted: self-signed certificate" in said
    assert "SSL_CERT_FILE" in said
    _, other = server_context(tmp_path / "other")
    assert "is not trusted" in _elsewhere(tmp_path, SSL_CERT_FILE=other).refused(4, "--server", url, "ps")


def test_a_certificate_of_another_name_and_one_that_has_expired_are_refused(world: World, tmp_path: Path) -> None:
    _, authority = server_context(tmp_path / "tls", name="gpu.example.org")
    url = _serve(world, tmp_path / "tls")
    asker = _elsewhere(tmp_path, SSL_CERT_FILE=authority)
    assert "IP address mismatch" in asker.refused(4, "login", url)
    world.kill()
    _, authority = server_context(tmp_path / "tls", good_days=-1)
    url = _serve(world, tmp_path / "tls")
    asker = _elsewhere(tmp_path, SSL_CERT_FILE=authority)
    assert "certificate has expired" in asker.refused(4, "login", url)


def test_old_protocols_and_no_tls_at_all_get_nothing(world: World, tmp_path: Path) -> None:
    _, authority = server_context(tmp_path / "tls")
    url = _serve(world, tmp_path / "tls")
    port = int(url.rpartition(":")[2])
    said = _elsewhere(tmp_path).refused(1, "login", f"http://127.0.0.1:{port}")
    assert f"http://127.0.0.1:{port} does not answer" in said
    assert "or say https://" in said
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        plain.sendall(b"GET /login HTTP/1.0\r\n\r\n")
        assert b"HTTP" not in plain.recv(4096)
    old = ssl.create_default_context(cafile=authority)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):  # as it is
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line, pytest.raises(ssl.SSLError):
        old.wrap_socket(line, server_hostname="127.0.0.1")


def test_the_key_is_the_pools_alone_and_who_does_not_finish_a_handshake_holds_nobody_back(
    world: World, tmp_path: Path
) -> None:
    _, authority = server_context(tmp_path / "tls")
    assert (tmp_path / "tls" / "tls.key").stat().st_mode & 0o777 == 0o600
    url = _serve(world, tmp_path / "tls")
    port = int(url.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(50)]
    trusting = ssl.create_default_context(cafile=authority)

    def answered() -> bool:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trusting)
        try:
            connection.request("GET", "/login")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    until(answered, what="the page to be served beside those who say nothing")
    for line in silent:
        line.close()
