"""Classification of connections by their first bytes."""

from __future__ import annotations

import contextlib
import ssl

from hypothesis import example, given
from hypothesis import strategies as st

from calabash.broker.server.first_record import HELLO_BYTES_MAX, MoreNeeded, SessionBegins, SomethingElse, classify

LEASE, SESSION = "0a" * 16, "1b" * 16


def vector(size: int, content: bytes) -> bytes:
    return len(content).to_bytes(size, "big") + content


def hello(
    identity: bytes = f"{LEASE}.{SESSION}".encode(),
    *,
    others: tuple[tuple[int, bytes], ...] = ((43, b"\x02\x03\x04"), (51, b"\0\0")),
    behind: tuple[tuple[int, bytes], ...] = (),
    more_identities: bytes = b"",
    rest: bytes = b"",
) -> bytes:
    """Return a ClientHello that offers the identity as its pre-shared key."""
    offered = vector(2, vector(2, identity) + bytes(4) + more_identities) + vector(2, vector(1, bytes(32)))
    extensions = b"".join(
        kind.to_bytes(2, "big") + vector(2, content) for kind, content in (*others, (41, offered), *behind)
    )
    body = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01") + vector(1, b"\0")
    body += vector(2, extensions) + rest
    return b"\x16\x03\x01" + vector(2, b"\x01" + vector(3, body))


def python_hello() -> bytes:
    """Return the first bytes of a TLS connection of Python's ssl module."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(there, back, server_hostname="lab01")
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return back.read()


def test_hello_with_lease_key_begins_a_session() -> None:
    assert classify(hello()) == SessionBegins(LEASE, SESSION)
    assert classify(hello() + b"early data") == SessionBegins(LEASE, SESSION)


def test_incomplete_hello_reports_needed_size() -> None:
    whole = hello()
    for size in range(len(whole)):
        assert classify(whole[:size]) == MoreNeeded(5 if size < 5 else len(whole))


def test_https_hello_is_not_a_session() -> None:
    found = python_hello()
    assert found[0] == 22
    assert classify(found) == SomethingElse()


def test_malformed_session_hello_is_not_a_session() -> None:
    almost = [
        hello(f"{LEASE}.{SESSION}0".encode()),
        hello(f"{LEASE.upper()}.{SESSION}".encode()),
        hello(f"{LEASE}{SESSION}".encode()),
        hello(b""),
        hello(behind=((0, b""),)),
        hello(others=((43, b""), (43, b""))),
        hello(more_identities=vector(2, b"ticket") + bytes(4)),
        hello(rest=b"\0"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x02\x01\x00\x05hello",
        b"\x17\x03\x03\x00\x05hello",
        b"\x16\x03\x01" + HELLO_BYTES_MAX.to_bytes(2, "big"),
    ]
    assert [classify(data) for data in almost] == [SomethingElse()] * len(almost)


@given(st.binary(max_size=600))
@example(b"\x16\x03\x01\x00\x00")
def test_arbitrary_bytes_are_classified_without_error(data: bytes) -> None:
    found = classify(data)
    assert isinstance(found, MoreNeeded | SomethingElse)
    assert not isinstance(found, MoreNeeded) or len(data) < found.size <= HELLO_BYTES_MAX


@given(st.data())
def test_only_a_well_formed_hello_begins_a_session(data: st.DataObject) -> None:
    whole = bytearray(hello())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    found = classify(bytes(whole))
    if isinstance(found, SessionBegins):
        # then only what nobody looks at has changed: no length, no kind
        assert hello(f"{found.lease}.{found.session}".encode())[:9] == bytes(hello())[:9]
        assert len(whole) == len(hello())


@given(st.integers(0, 1000), st.binary(max_size=8))
def test_truncated_or_extended_hello_never_begins_a_session(cut: int, more: bytes) -> None:
    whole = hello()
    size = cut % len(whole)
    torn = whole[:5][:3] + (size).to_bytes(2, "big") + whole[5 : 5 + size]
    if size != len(whole) - 5:
        assert classify(torn + more) != SessionBegins(LEASE, SESSION)
