"""Tests of requests to other web servers: permitted addresses, and invalid replies."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.certificates import server_context
from tests.receiver import receiving

from calabash.model.errors import CalabashError, Reason
from calabash.transport.web import AddressRule, WebClient
from calabash.transport.web.addresses import networks
from calabash.transport.web.client import checked_url

PUBLIC = AddressRule()
HERE = AddressRule(allowed=networks(["127.0.0.1"]))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
        "255.255.255.255", "240.0.0.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1", "192.0.2.1", "198.18.0.1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_everybodys_is_not_reached(address: str) -> None:
    assert not PUBLIC.permits(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_a_public_address_is_reached(address: str) -> None:
    assert PUBLIC.permits(ipaddress.ip_address(address))
    assert not PUBLIC.named(ipaddress.ip_address(address))


def test_what_an_administrator_names_is_reached_by_whatever_protocol() -> None:
    rule = AddressRule(allowed=networks(["10.0.0.0/8", "fd00::/8"]))
    for address in ("10.1.2.3", "fd00::1", "::ffff:10.1.2.3"):
        assert rule.permits(ipaddress.ip_address(address))
    assert not rule.permits(ipaddress.ip_address("192.168.0.1"))
    with pytest.raises(CalabashError, match="is no network"):
        networks(["10.0.0.1/8"])


@given(st.integers(0, (1 << 32) - 1))
def test_an_address_inside_another_is_judged_as_what_it_leads_to(number: int) -> None:
    inner = ipaddress.IPv4Address(number)
    mapped = ipaddress.IPv6Address((0xFFFF << 32) | number)
    assert PUBLIC.permits(mapped) == PUBLIC.permits(inner)
    if not PUBLIC.permits(inner):
        assert not PUBLIC.permits(ipaddress.IPv6Address((0x0064FF9B << 96) | number))


def test_the_address_that_was_looked_at_is_the_one_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = iter(["127.0.0.1", "10.0.0.1"])

    def resolve(host: str, port: int, **_: object) -> list[object]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (next(answers), port))]

    with receiving() as receiver:
        port = int(receiver.url.split(":")[2].partition("/")[0])
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, *a, **k: (resolve if host == "a.example" else real)(host, *a, **k),
        )
        client = WebClient(rule=HERE)
        assert client.ask("POST", f"http://a.example:{port}/", b"x").status == 200
        with pytest.raises(CalabashError) as failed:
            client.ask("POST", f"http://a.example:{port}/", b"x")
    assert failed.value.reason is Reason.NOT_PERMITTED
    assert asked == ["a.example", "a.example"]
    assert receiver.taken[0][0]["host"] == f"a.example:{port}"


@contextmanager
def _speaking(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that calls ``speak`` for the first connection; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(65536)
                try:
                    speak(line)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join()


def _drip(line: socket.socket) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        line.sendall(b"x-more: 1\r\n")
        threading.Event().wait(0.02)


@pytest.mark.parametrize(
    ("speak", "timeout_s", "reason"),
    [
        (lambda line: line.sendall(b"no HTTP at all\r\n\r\n"), 60.0, Reason.UNREACHABLE),
        (lambda line: line.sendall(b""), 60.0, Reason.UNREACHABLE),
        (lambda line: line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"), 60.0, Reason.UNREACHABLE),
        (lambda line: line.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000), 60.0, Reason.UNREACHABLE),
        (_drip, 0.5, Reason.TIMEOUT),
    ],
)
def test_a_bad_answer_is_an_error_within_its_time(
    speak: Callable[[socket.socket], None], timeout_s: float, reason: Reason
) -> None:
    client = WebClient(rule=HERE, timeout_s=timeout_s, bytes_max=1000)
    with _speaking(speak) as url, pytest.raises(CalabashError) as failed:
        client.ask("GET", url)
    assert failed.value.reason is reason


@pytest.mark.parametrize(
    ("name", "trusted", "taken"),
    [("127.0.0.1", True, True), ("127.0.0.1", False, False), ("elsewhere.org", True, False)],
)
def test_a_certificate_has_to_be_signed_by_whom_is_trusted_for_that_very_name(
    tmp_path: Path, name: str, trusted: bool, taken: bool
) -> None:
    context, authority = server_context(tmp_path / "one", name=name)
    _, other = server_context(tmp_path / "two")
    client = WebClient(rule=HERE, authority=authority if trusted else other)
    with receiving(context) as receiver:
        if taken:
            assert client.ask("POST", receiver.url, b"x").status == 200
        else:
            with pytest.raises(CalabashError, match="is not trusted"):
                client.ask("POST", receiver.url, b"x")
    assert len(receiver.taken) == int(taken)


@given(st.text(max_size=60))
def test_whatever_is_given_as_a_url_is_taken_or_refused_with_a_reason(text: str) -> None:
    for url in (text, f"https://{text}", f"https://example.org/{text}"):
        try:
            parts = checked_url(url)
        except CalabashError:
            continue
        assert parts.scheme in {"http", "https"}
        assert parts.hostname
        assert "@" not in parts.netloc
        assert url.isascii()
