"""Bounds of a server's connections: shares of peers, the order in which connections are closed, and bytes in memory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.transport.connections import Activity, Connection, Connections, peer_of


class Table(Connections):
    """Notes which connections are closed for others."""

    def __init__(self, *, most: int = 4, per_peer: int = 2, held_bytes_max: int = 100) -> None:
        super().__init__(most=most, per_peer=per_peer, held_bytes_max=held_bytes_max)
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
        st.sampled_from(["open", "activity", "take", "release", "end"]),
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
            elif what == "take":
                table.take(one, count)
            elif what == "release":
                table.release(one)
            else:
                table.ended(one)
        alive = [c for there in table._by_peer.values() for c in there]
        assert len(table) == len(alive) <= 5
        assert max(Counter(c.peer for c in alive).values(), default=0) <= 3
        assert table._held_bytes == sum(c.held_bytes for c in alive) <= 100
