"""Clients of an MPS server and the shares that it gives."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.mps_world import ONE, TWO

from calabash.model.request import AllocationId
from calabash.node.modes.mps.daemon import ADMITTED_MAX, RECENT_S, Clients, Share, Shares


def test_client_is_known_for_a_short_time_after_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clients = Clients({7: ONE, 8: TWO}.get)
    clients.update([7, 8, 9])
    now[0] += RECENT_S / 2
    clients.update([8])
    assert clients.by_allocation() == {ONE: [7], TWO: [8]}
    now[0] += RECENT_S * 0.6
    assert clients.by_allocation() == {TWO: [8]}
    clients.clear()
    assert clients.by_allocation() == {}


def test_allocation_of_a_client_is_known_after_its_process_ended() -> None:
    owners = {7: ONE}
    clients = Clients(owners.get)
    clients.update([7])
    owners.clear()
    clients.update([7])
    assert clients.owner_of(7) == ONE
    clients.add_admitted(9, TWO)
    clients.clear()
    assert clients.owner_of(9) == TWO
    assert clients.owner_of(10) is None


def test_number_of_remembered_admitted_clients_is_bounded() -> None:
    clients = Clients(lambda _: None)
    for pid in range(1, ADMITTED_MAX + 3):
        clients.add_admitted(pid, ONE)
    clients.clear()
    assert clients.owner_of(1) is None
    assert clients.owner_of(ADMITTED_MAX + 2) == ONE


SHARES = st.builds(lambda p, m: Share(percent=p, memory_mib=m), st.integers(1, 100), st.integers(1, 80_000))


@given(st.lists(SHARES, max_size=8))
def test_wanted_share_without_admission_is_the_smallest(held: list[Share]) -> None:
    shares = Shares()
    for number, share in enumerate(held):
        shares.hold(AllocationId(str(number)), share)
    rest = shares.wanted()
    assert all(rest.percent <= s.percent and rest.memory_mib <= s.memory_mib for s in held)
    assert rest.percent >= 1
    assert rest.memory_mib >= 1


def test_wanted_share_during_admission_is_that_of_the_program() -> None:
    shares = Shares()
    shares.hold(ONE, Share(percent=50, memory_mib=100))
    shares.hold(TWO, Share(percent=10, memory_mib=900))
    share = shares.share_of(ONE)
    assert share is not None
    shares.begin_admission(share)
    assert shares.is_admitting
    assert shares.wanted() == Share(percent=50, memory_mib=100)
    shares.end_admission()
    assert not shares.is_admitting
    assert shares.wanted() == Share(percent=10, memory_mib=100)
    shares.leave(TWO)
    assert shares.share_of(TWO) is None
    assert shares.wanted() == Share(percent=50, memory_mib=100)
    shares.leave(ONE)
    shares.leave(ONE)
    assert shares.idle
