"""What the first bytes of a connection are taken for."""

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
    """A ClientHello that offers that identity as its pre-shared key."""
    offered = vector(2, vector(2, identity) + bytes(4) + more_identities) + vector(2, vector(1, bytes(32)))
    extensions = b"".join(
        kind.to_bytes(2, "big") + vector(2, content) for kind, content in (*others, (41, offered), *behind)
    )
    body = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01") + vector(1, b"\0")
    body += vector(2, extensions) + rest
    return b"\x16\x03\x01" + vector(2, b"\x01" + vector(3, body))


def python_hello() -> bytes:
    """What Python's own TLS begins with."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    connection = context.wrap_bio(there, back, server_hostname="lab01")
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return back.read()


def test_a_hello_with_the_key_of_a_lease_begins_a_session() -> None:
    assert classify(hello()) == SessionBegins(LEASE, SESSION)
    assert classify(hello() + b"early data") == SessionBegins(LEASE, SESSION)


def test_a_hello_that_is_not_whole_says_how_much_is_needed() -> None:
    whole = hello()
    for size in range(len(whole)):
        assert classify(whole[:size]) == MoreNeeded(5 if size < 5 else len(whole))


def test_the_hello_of_a_command_line_is_something_else() -> None:
    found = python_hello()
    assert found[0] == 22
    assert classify(found) == SomethingElse()


def test_what_is_almost_a_session_is_something_else() -> None:
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
def test_any_bytes_are_something(data: bytes) -> None:
    found = classify(data)
    assert isinstance(found, MoreNeeded | SomethingElse)
    assert not isinstance(found, MoreNeeded) or len(data) < found.size <= HELLO_BYTES_MAX


@given(st.data())
def test_a_session_begins_by_no_other_bytes_than_a_hello_that_is_well_formed(data: st.DataObject) -> None:
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
def test_a_cut_or_lengthened_hello_never_begins_a_session(cut: int, more: bytes) -> None:
    whole = hello()
    size = cut % len(whole)
    torn = whole[:5][:3] + (size).to_bytes(2, "big") + whole[5 : 5 + size]
    if size != len(whole) - 5:
        assert classify(torn + more) != SessionBegins(LEASE, SESSION)
