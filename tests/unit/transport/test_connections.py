"""Bounds of a server's connections: shares of peers, the order in which connections are closed, and bytes in memory."""

from __future__ import annotations

import socket
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.transport.connections import Activity, Connection, Connections, peer_of


class Table(Connections):
    """Notes which connections are closed for others."""

    def __init__(
        self, *, most: int = 4, per_peer: int = 2, held_bytes_max: int = 100, without_credential: int | None = None
    ) -> None:
        super().__init__(
            most=most, per_peer=per_peer, held_bytes_max=held_bytes_max, without_credential=without_credential
        )
        self.closed: list[Connection] = []
        self.all: list[Connection] = []

    def come(self, address: str) -> Connection | None:
        found = self.open(address, lambda: self.closed.append(found) if found is not None else None)
        if found is not None:
            self.all.append(found)
        return found

    def must(self, address: str) -> Connection:
        found = self.come(address)
        assert found is not None
        return found


def test_a_peer_at_its_limit_loses_its_own_oldest_connection() -> None:
    table = Table()
    other = table.must("10.0.0.9")
    first, second = table.must("10.0.0.1"), table.must("10.0.0.1")
    third = table.must("10.0.0.1")
    assert table.closed == [first]
    table.set_activity(second, Activity.IDLE)
    table.must("10.0.0.1")
    assert table.closed == [first, second]
    assert other not in table.closed
    assert third not in table.closed


def test_accepted_connection_counts_for_the_peer_that_the_function_returns() -> None:
    users = iter(["user 1", "user 2", "user 2"])
    table = Connections(most=8, per_peer=1, peer=lambda _, address: f"{next(users)} at {address}")
    closed: list[str] = []
    with socket.socket() as accepted:
        first = table.accept(accepted, "127.0.0.1", lambda: closed.append("first"))
        second = table.accept(accepted, "127.0.0.1", lambda: closed.append("second"))
        assert closed == []
        third = table.accept(accepted, "127.0.0.1", lambda: closed.append("third"))
    assert [one.peer for one in (first, second, third) if one is not None] == [
        "user 1 at 127.0.0.1",
        "user 2 at 127.0.0.1",
        "user 2 at 127.0.0.1",
    ]
    assert closed == ["second"]


def test_a_full_table_closes_a_connection_of_the_peer_that_has_most() -> None:
    table = Table(most=4, per_peer=3)
    few = table.must("10.0.0.1")
    many = [table.must("10.0.0.2") for _ in range(3)]
    table.must("10.0.0.3")
    assert table.closed == [many[0]]
    assert few not in table.closed


def test_an_idle_connection_is_closed_first_and_a_proven_one_last() -> None:
    table = Table(most=3, per_peer=3)
    proven, asking, idle = (table.must("10.0.0.1") for _ in range(3))
    proven.proven = True
    table.set_activity(idle, Activity.IDLE)
    table.set_activity(asking, Activity.ASKING)
    table.must("10.0.0.1")
    assert table.closed == [idle]
    table.must("10.0.0.1")
    table.must("10.0.0.1")
    assert proven not in table.closed


def test_a_connection_whose_request_is_answered_is_never_closed_for_another() -> None:
    table = Table(most=2, per_peer=2)
    for connection in [table.must("10.0.0.1"), table.must("10.0.0.1")]:
        table.set_activity(connection, Activity.BUSY)
    assert table.come("10.0.0.1") is None
    assert table.come("10.0.0.2") is None
    assert table.closed == []


def test_peer_with_too_many_connections_loses_its_oldest_one_that_is_not_answered() -> None:
    table = Table(most=100, per_peer=3)
    table.must("user 2")
    first, *rest = (table.must("user 1") for _ in range(3))
    table.set_activity(first, Activity.BUSY)
    table.must("user 1")
    table.must("user 1")
    assert table.closed == rest


def test_connection_with_a_refused_credential_is_closed_first() -> None:
    table = Table(most=100, per_peer=3)
    table.must("user 1")
    idle, guessed = table.must("user 1"), table.must("user 1")
    table.set_activity(idle, Activity.IDLE)
    table.set_activity(guessed, Activity.REFUSED)
    table.must("user 1")
    assert table.closed == [guessed]


def test_connections_without_a_credential_leave_half_of_the_room() -> None:
    table = Table(most=20, per_peer=8, without_credential=10)
    lines = [table.must(f"user {n % 5}") for n in range(40)]
    assert len(table.closed) == 30
    kept = [line for line in lines if line not in table.closed]
    for n in range(10):
        valid = table.must("user 9")
        table.prove(valid, f"token {n}")
        assert valid not in table.closed
    assert len(table) == 10 + len([line for line in kept if line not in table.closed])


def test_credential_with_too_many_connections_loses_its_own() -> None:
    table = Table(most=20, per_peer=2)
    first, second, third, answered = (table.must(f"user {n}") for n in range(4))
    for one in (first, second, third):
        table.prove(one, "token a")
    assert table.closed == [first]
    for one in (second, third, answered):
        table.set_activity(one, Activity.BUSY)
    table.prove(answered, "token a")
    assert table.closed == [first, answered]
    table.prove(first, "token b")
    assert len(table) == 2, "a closed connection is not counted again"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=80))
def test_bounds_hold_after_any_steps_and_a_small_holder_keeps_its_connections(
    steps: list[tuple[str, bool, bool]],
) -> None:
    table = Table(most=12, per_peer=4, without_credential=6)
    honest = table.must("user honest")
    table.set_activity(honest, Activity.BUSY)
    for holder, waits, proves in steps:
        line = table.come(f"user {holder}")
        if line is not None:
            table.set_activity(line, Activity.IDLE if waits else Activity.BUSY)
            if proves:
                table.prove(line, f"token {holder}")
        assert len(table) == len(set(table.all) - set(table.closed)) <= 12
    assert honest not in table.closed
    for line in table.all:
        if line not in table.closed:
            table.ended(line)
    assert len(table) == 0
    table.must("user a")


def test_bytes_are_bounded_and_taken_from_the_peer_that_holds_most() -> None:
    table = Table(most=8, per_peer=8, held_bytes_max=100)
    first, second = table.must("10.0.0.1"), table.must("10.0.0.1")
    honest = table.must("10.0.0.2")
    assert table.take(first, 50)
    assert table.take(second, 50)
    assert table.take(honest, 40)
    assert table.closed == [first]
    assert not table.take(first, 1), "it was closed"
    assert not table.take(second, 60), "more than the other peer has"
    assert honest not in table.closed
    table.ended(second)
    table.release(honest)
    assert table._held_bytes == 0


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_a_peer_is_an_ipv4_address_or_a_network_of_ipv6(address: str, peer: str) -> None:
    assert peer_of(address) == peer


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "activity", "prove", "take", "release", "end"]),
        st.integers(0, 30),
        st.sampled_from(list(Activity)),
        st.integers(0, 60),
    ),
    max_size=80,
)


@given(_STEPS)
def test_no_history_exceeds_a_bound(steps: list[tuple[str, int, Activity, int]]) -> None:
    table = Table(most=5, per_peer=3, held_bytes_max=100)
    for what, number, activity, count in steps:
        if what == "open":
            table.come(f"10.0.0.{number % 4}")
        elif table.all:
            one = table.all[number % len(table.all)]
            if what == "activity":
                table.set_activity(one, activity)
            elif what == "prove":
                table.prove(one, f"token {count % 3}")
            elif what == "take":
                table.take(one, count)
            elif what == "release":
                table.release(one)
            else:
                table.ended(one)
        alive = [c for holders in (table._by_peer, table._by_credential) for there in holders.values() for c in there]
        assert len(table) == len(alive) <= 5
        assert max(Counter(c.credential or c.peer for c in alive).values(), default=0) <= 3
        assert table._held_bytes == sum(c.held_bytes for c in alive) <= 100
