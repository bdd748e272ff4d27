"""MPS service over a simulated control daemon: start, admissions, watchdog and end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.node.mps_world import BOUND_S, ONE, SERVED, TWO, Pretended, Sleepers, Told

from calabash.adapters.host.processes import identify
from calabash.model.errors import CalabashError, Reason
from calabash.node.health.conditions import HealthEvent
from calabash.node.modes.mps import daemon as mps_daemon
from calabash.node.modes.mps import service as mps_service
from calabash.node.modes.mps.daemon import Share
from calabash.node.modes.mps.notices import RECOVERY_EVENTS
from calabash.node.modes.mps.service import CardService


class Card:
    """Service of which two allocations hold shares of 60% and 30%."""

    def __init__(self, home: Path, sleepers: Sleepers, patch: pytest.MonkeyPatch) -> None:
        self.control = Pretended(home / "0", sleepers)
        patch.setattr(mps_service, "MpsControl", lambda *_: self.control)
        self.told = Told()
        self.sleepers = sleepers
        self.service = CardService(SERVED, home / "0", self.told.tools)
        self.service.hold(ONE, Share(percent=60, memory_mib=4096))
        self.service.hold(TWO, Share(percent=30, memory_mib=8192))
        self.daemon = self.service._daemon
        self.admissions = self.service._admissions

    def client(self, owner: object = None) -> int:
        """Start a program that has joined; return it."""
        pid = self.sleepers.one().pid
        self.control.clients.append(pid)
        if owner in (ONE, TWO):
            self.told.owners[pid] = owner  # type: ignore[assignment]
        return pid

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline
            self.service.poll()
            time.sleep(0.005)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    sleepers = Sleepers()
    made = Card(tmp_path, sleepers, monkeypatch)
    made.service.ensure()
    yield made
    made.service.release()
    sleepers.close()


# -- daemon ----------------------------------------------------------------------------------------------------------


def test_idle_service_and_its_next_server_give_the_smallest_share(card: Card) -> None:
    assert card.service.serves
    assert card.control.gives == ("30", "4096M")
    assert card.control.defaults == ("30", "4096M")
    assert card.service.socket_path.exists()


def test_ensure_of_a_running_service_asks_one_question(card: Card) -> None:
    before = card.control.asked
    card.service.ensure()
    assert card.control.asked == before + 1
    card.service.hold(TWO, Share(percent=20, memory_mib=8192))
    card.service.ensure()
    assert card.control.asked == before + 3
    assert card.control.gives == ("20", "4096M")


def test_daemon_that_exits_at_once_is_reported_with_its_log_and_leaves_no_process(card: Card) -> None:
    card.daemon.end()
    card.control.refuses_to_start = True
    with pytest.raises(CalabashError, match="the MPS daemon of device 0 does not start") as told:
        card.service.ensure()
    assert "control.log" in told.value.hint
    assert card.service.daemon is None
    assert not card.service.serves


def test_start_of_a_server_times_out(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_daemon, "START_S", 0.05)
    card.control.server_dies()
    card.control.has_no_servers = True
    with pytest.raises(CalabashError, match="does not start within") as told:
        card.service.ensure()
    assert told.value.reason is Reason.TIMEOUT


@pytest.mark.parametrize("dies", ["short_lived", "leaves"])
def test_daemon_or_server_that_dies_during_the_start_is_restarted_at_once(
    card: Card, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    monkeypatch.setattr(mps_daemon, "START_S", 3600.0)  # nothing that waits for it ends within the limit of a test
    card.control.server_dies()
    setattr(card.control, dies, 2)
    card.service.ensure()
    assert getattr(card.control, dies) == 0
    assert card.service.serves
    assert card.control.gives == ("30", "4096M")


def test_share_is_set_again_on_a_new_server(card: Card) -> None:
    card.control.server_dies()
    card.control.given.clear()
    card.service.ensure()
    assert card.control.given == [("30", "4096M")]


def test_daemon_and_server_end_together(card: Card) -> None:
    server, daemon = card.control.server, card.control.daemon
    card.daemon.end()
    assert server is not None
    assert daemon is not None
    assert server.wait(BOUND_S) != 0
    assert daemon.wait(BOUND_S) != 0
    assert card.daemon.server_pid == 0


# -- turns -----------------------------------------------------------------------------------------------------------


def test_server_gives_the_share_of_an_admitted_program_only_while_it_joins(card: Card) -> None:
    with card.admissions.admitted(ONE, os.getpid()) as admitted:
        assert admitted
        assert card.control.gives == ("60", "4096M")
        assert card.control.defaults == ("30", "4096M")  # a server that comes meanwhile gives the least
    assert card.control.gives == ("30", "4096M")
    assert card.told.events == []


def test_program_without_a_share_is_not_admitted_and_changes_nothing(card: Card) -> None:
    card.service.leave(TWO)
    before = card.control.asked
    with card.admissions.admitted(TWO, os.getpid()) as admitted:
        assert not admitted
    assert card.control.asked == before


def test_client_that_joins_on_the_share_of_another_allocation_is_terminated_and_reported(card: Card) -> None:
    with card.admissions.admitted(ONE, os.getpid()):
        bare, unmanaged = card.client(TWO), card.client()
        own = card.client(ONE)
    assert sorted(card.control.terminated) == sorted([bare, unmanaged])
    assert own not in card.control.terminated
    told = card.told.events_of("mps_slipped_in")
    assert {allocation for allocation, _ in told} == {TWO, ""}
    assert all("the share of allocation one was set" in message for _, message in told)


def test_client_with_a_larger_share_that_joins_without_admission_stays(card: Card) -> None:
    card.service.hold(TWO, Share(percent=90, memory_mib=9000))
    with card.admissions.admitted(ONE, os.getpid()):
        card.client(TWO)
    assert card.control.terminated == []


@pytest.mark.parametrize(
    ("sees", "wrong"), [(60, False), (58, False), (62, False), (57, True), (100, True), (0, False)]
)
def test_multiprocessors_that_a_program_reports_are_compared_with_its_share(card: Card, sees: int, wrong: bool) -> None:
    card.admissions.joined(ONE, 4711, sees)
    assert bool(card.told.events_of("mps_unverified")) is wrong
    assert (ONE in card.told.notes) is wrong


# -- watch -----------------------------------------------------------------------------------------------------------


def test_fault_is_reported_to_all_clients_and_service_recovers_after_they_left(card: Card) -> None:
    culprit, victim = card.client(ONE), card.client(TWO)
    card.service.poll()
    card.control.status, card.control.by = "FAULT", culprit
    card.service.poll()
    told = dict(card.told.events_of("mps_fault"))
    assert set(told) == {ONE, TWO}
    assert f"allocation one (process {culprit})" in told[TWO]
    assert str(victim) in told[TWO]
    assert not card.service.serves
    assert [(event, tenants) for event, _, tenants in card.told.health] == [
        (HealthEvent.APP_FAULT, frozenset({ONE, TWO}))
    ]
    card.control.status = "ACTIVE"
    card.control.clients.clear()
    card.service.poll()
    assert "serves again" in card.told.events_of("mps_back")[0][1]
    assert card.service.serves
    assert tuple(event for event, *_ in card.told.health[1:]) == RECOVERY_EVENTS


def test_fault_without_a_known_client_is_reported(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_service, "NAMED_WITHIN_S", 0.02)
    card.client(TWO)
    card.service.poll()
    card.control.status = "FAULT"
    card.until(lambda: card.told.events_of("mps_fault"))
    ((allocation, message),) = card.told.events_of("mps_fault")
    assert allocation == TWO
    assert message.startswith("a fatal fault of a client occurred on device 0")


def test_server_is_shut_down_if_clients_stay_after_a_fault(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_service, "PART_AFTER_S", 0.05)
    before = card.control.server
    culprit = card.client(ONE)
    card.service.poll()
    card.control.status, card.control.by = "FAULT", culprit
    card.until(lambda: card.told.events_of("mps_back"))
    assert card.control.server is not before
    assert len(card.told.events_of("mps_fault")) == 1
    assert card.told.events_of("mps_server_died") == []
    assert card.service.serves


@pytest.mark.parametrize("dies", ["daemon", "server"])
def test_death_of_daemon_or_server_is_reported_and_it_is_restarted(card: Card, dies: str) -> None:
    card.client(TWO)
    card.service.poll()
    if dies == "server":
        card.control.server_dies()
    else:
        assert card.control.daemon is not None
        card.control.daemon.kill()
        card.control.daemon.wait()
    card.until(lambda: [event for event, *_ in card.told.health][1:] == list(RECOVERY_EVENTS))
    ((allocation, message),) = card.told.events_of(f"mps_{dies}_died")
    assert allocation == TWO
    assert f"the MPS {dies} died on device 0" in message
    assert card.told.health[0][0] is HealthEvent.NEEDS_RESET
    assert card.told.health[0][2] == {TWO}
    assert "runs again" in card.told.events_of("mps_back")[0][1]
    assert card.control.gives == ("30", "4096M")


def test_restart_is_tried_with_growing_pauses_and_reported_once(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_service, "RETRY_MAX_S", 4.0)
    card.control.refuses_to_start = True
    assert card.control.daemon is not None
    card.control.daemon.kill()
    card.control.daemon.wait()
    watch = card.service._watch
    for wanted_s in (2.0, 4.0, 4.0):
        watch._retry_at = 0.0
        card.service.poll()
        deadline = time.monotonic() + BOUND_S
        while watch._retry_at == 0.0 or watch._retry_s != wanted_s:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert len(card.told.events_of("mps_daemon_died")) == 1
    assert not card.service.serves
    card.control.refuses_to_start = False
    watch._retry_at = 0.0
    card.until(lambda: card.told.events_of("mps_back"))
    assert watch._retry_s == mps_service.RETRY_S


def test_share_changed_from_outside_is_set_again_and_only_that_is_reported(card: Card) -> None:
    assert card.service.verify() == []
    card.control.gives = ("100", "unlimited")
    (mended,) = card.service.verify()
    assert mended == (
        "the MPS server of device 0 gave 100% and 0 MiB to new clients and was set to 30% and 4096 MiB again"
    )
    assert card.control.gives == ("30", "4096M")
    card.service.leave(TWO)
    assert card.service.verify() == []
    assert card.control.gives == ("60", "4096M")


# -- the end ---------------------------------------------------------------------------------------------------------


def test_stopped_service_ends_all_processes_and_reports_an_unseen_fault(card: Card) -> None:
    client = card.client(ONE)
    card.service.poll()
    card.service.leave(ONE)
    card.service.leave(TWO)
    card.control.by = client
    card.service.stop()
    assert card.service.idle
    assert card.service.daemon is None
    assert not card.service.socket_path.exists()
    assert card.told.events_of("mps_fault")[0][0] == ONE


def test_daemon_and_server_keep_running_when_the_pool_stops(card: Card) -> None:
    card.service.release()
    assert not card.service.socket_path.exists()
    daemon = card.control.daemon
    assert daemon is not None
    assert daemon.poll() is None
    process = identify(daemon.pid)
    assert process is not None
    card.daemon.process = card.daemon.server = None
    card.service.adopt(process)
    card.service.ensure()
    assert card.service.daemon == process
    assert card.control.daemon is daemon
    assert card.service.serves
