"""Ports that servers hold: one holder at a time, journalled before they are created, closed if not renewed in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.unit.node.port_world import held

from calabash.model.errors import CalabashError, Reason
from calabash.node.ports.protocol import Place, require_no_place
from calabash.pool.networks.listening_ports import PlaceJournal, ServerPlaces
from calabash_testing.clock import VirtualClock

PORT, MINE = "red/a/gpu1", "server lab01 (/home)"


class Pool:
    """Pool with ports of servers, on a host that records which ports are created and removed."""

    def __init__(self, home: Path) -> None:
        self.clock = VirtualClock()
        self.records: list[Any] = []
        self.journal = PlaceJournal(home)
        self.network = MagicMock()
        self.network.place.return_value = Place(namespace=Path("/run/netns/x"), directory=home, resolver_file=None)
        self.network.attach.side_effect = self._attach
        network_store, agent = MagicMock(), MagicMock()
        network_store.usable_port.return_value.addresses = ("10.0.1.20",)
        network_store.state.return_value.networks.find.return_value.tenant = "red"
        agent.records = lambda: self.records
        self.places = ServerPlaces(
            self.journal,
            network=self.network,
            network_store=network_store,
            agent=agent,
            permission=MagicMock(),
            clock=self.clock,
        )

    def open(self, holder: str = MINE) -> str:
        return self.places.open(MagicMock(), port=PORT, holder=holder, keep_s=60).entry.id

    def _attach(self, record: Any) -> None:
        assert self.journal.entry_of(PORT), "it is on disk before it is made"


def test_a_server_that_asks_again_has_the_same_place_and_another_is_told_who_has_it(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    first = pool.open()
    assert pool.open() == first
    with pytest.raises(CalabashError, match=r"held by server lab01") as refused:
        pool.open("server other (/elsewhere)")
    assert refused.value.reason is Reason.CONFLICT
    assert Pool(tmp_path).open() == first, "also of the next pool"


def test_a_port_that_an_allocation_has_is_not_a_servers_and_the_other_way_round(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.records = [held("one", PORT)]
    with pytest.raises(CalabashError, match="held by one"):
        pool.open()
    assert PlaceJournal(tmp_path).held() == []
    pool.records = []
    place = pool.open()
    with pytest.raises(CalabashError, match="held by server lab01"):
        require_no_place("one", (PORT,), pool.journal.held())
    require_no_place(place, (PORT,), pool.journal.held())


def test_a_place_of_which_nobody_speaks_is_given_back(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.open()
    pool.clock.advance(50)
    pool.open()
    pool.clock.advance(50)
    pool.places.end_overdue()
    assert not pool.places.free(PORT)
    pool.clock.advance(20)
    pool.places.end_overdue()
    assert pool.places.free(PORT)
    pool.network.leave.assert_called_once()


def test_a_pool_goes_down_under_a_server_by_force_only(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.open()
    with pytest.raises(CalabashError, match="held by server lab01") as refused:
        pool.places.close_all(force=False)
    assert "server down" in refused.value.hint
    pool.places.close_all(force=True)
    assert PlaceJournal(tmp_path).held() == []


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "places.json").write_text("[{}]")
    with pytest.raises(CalabashError, match="is damaged") as refused:
        PlaceJournal(tmp_path)
    assert refused.value.reason is Reason.BAD_FILE
