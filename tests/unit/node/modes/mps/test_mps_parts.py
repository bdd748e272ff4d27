"""The small parts of mode mps: who clients are, what a server is to give, what is told, what is served, what is kept."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.mps_world import CARD, ONE, TWO, Told

from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import Device, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.mentions import unmarked
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.policy import FaultClass, MpsRules
from calabash.node.modes.mps import clients as mps_clients
from calabash.node.modes.mps import executor as executor_module
from calabash.node.modes.mps.clients import LET_IN_MAX, Clients
from calabash.node.modes.mps.executor import MpsExecutor
from calabash.node.modes.mps.notices import WELL_AGAIN, ServiceNews
from calabash.node.modes.mps.records import DaemonBook, RunningDaemon
from calabash.node.modes.mps.services import Services
from calabash.node.modes.mps.shares import Share, Shares
from calabash.node.modes.mps.target import Served, place_of, served_at
from calabash.node.modes.protocol import NodeTools

# -- clients ---------------------------------------------------------------------------------------------------------


def test_who_has_just_gone_is_still_known_and_later_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clients = Clients({7: ONE, 8: TWO}.get)
    clients.seen([7, 8, 9])
    now[0] += mps_clients.RECENT_S / 2
    clients.seen([8])
    assert clients.by_allocation() == {ONE: [7], TWO: [8]}
    now[0] += mps_clients.RECENT_S * 0.6
    assert clients.by_allocation() == {TWO: [8]}
    clients.clear()
    assert clients.by_allocation() == {}


def test_whose_a_client_was_is_remembered_when_its_process_is_nobodys_any_more() -> None:
    owners = {7: ONE}
    clients = Clients(owners.get)
    clients.seen([7])
    owners.clear()
    clients.seen([7])
    assert clients.whose(7) == ONE
    clients.let_in(9, TWO)
    clients.clear()
    assert clients.whose(9) == TWO
    assert clients.whose(10) is None


def test_however_many_are_let_in_only_the_last_are_remembered() -> None:
    clients = Clients(lambda _: None)
    for pid in range(1, LET_IN_MAX + 3):
        clients.let_in(pid, ONE)
    clients.clear()
    assert clients.whose(1) is None
    assert clients.whose(LET_IN_MAX + 2) == ONE


# -- shares ----------------------------------------------------------------------------------------------------------

SHARES = st.builds(lambda p, m: Share(percent=p, memory_mib=m), st.integers(1, 100), st.integers(1, 80_000))


@given(st.lists(SHARES, max_size=8))
def test_at_rest_nobody_gets_more_than_anybody_may_have(held: list[Share]) -> None:
    shares = Shares()
    for number, share in enumerate(held):
        shares.hold(AllocationId(str(number)), share)
    rest = shares.wanted()
    assert all(rest.percent <= s.percent and rest.memory_mib <= s.memory_mib for s in held)
    assert rest.percent >= 1
    assert rest.memory_mib >= 1


def test_whoever_is_let_in_gets_its_own_share_and_who_left_has_none() -> None:
    shares = Shares()
    shares.hold(ONE, Share(percent=50, memory_mib=100))
    shares.hold(TWO, Share(percent=10, memory_mib=900))
    shares.window = shares.of(ONE)
    assert shares.wanted() == Share(percent=50, memory_mib=100)
    shares.window = None
    assert shares.wanted() == Share(percent=10, memory_mib=100)
    shares.leave(TWO)
    assert shares.of(TWO) is None
    assert shares.wanted() == Share(percent=50, memory_mib=100)
    shares.leave(ONE)
    shares.leave(ONE)
    assert shares.idle


# -- news ------------------------------------------------------------------------------------------------------------


def test_everybody_hit_is_told_of_its_own_clients_and_of_whose_fault_it_was() -> None:
    told, clients = Told(), Clients({7: ONE, 8: TWO, 9: TWO}.get)
    clients.seen([7, 8, 9])
    news = ServiceNews(told.tools)
    news.fault(7, clients)
    events = dict(told.of("mps_fault"))
    assert set(events) == {ONE, TWO}
    assert "a fatal fault of allocation one (process 7) on device 0 hit its clients 8, 9:" in unmarked(events[TWO])
    assert told.notes[ONE] == events[ONE]
    assert told.health == []  # not under the locks that are held here
    news.report()
    ((event, cause, tenants),) = told.health
    assert (event, tenants) == (HealthEvent.APP_FAULT, frozenset({ONE, TWO}))
    assert unmarked(cause).startswith("a fatal fault of allocation one")


@pytest.mark.parametrize(("culprit", "by"), [(-1, "a client"), (55, "process 55")])
def test_a_culprit_that_nobody_knows_is_called_what_is_known_of_it(culprit: int, by: str) -> None:
    told = Told()
    ServiceNews(told.tools).fault(culprit, Clients(lambda _: None))
    assert told.of("mps_fault") == [("", f"a fatal fault of {by} on device 0 hit nobody")]


@pytest.mark.parametrize(
    ("fault", "event"),
    [
        (FaultClass.IGNORE, None),
        (FaultClass.APPLICATION, HealthEvent.APP_FAULT),
        (FaultClass.SUSPECT, HealthEvent.NEEDS_RESET),
        (FaultClass.RESET, HealthEvent.NEEDS_RESET),
        (FaultClass.REPLACE, HealthEvent.NEEDS_REPLACE),
    ],
)
def test_how_a_fault_is_judged_is_the_operators_matter(fault: FaultClass, event: HealthEvent | None) -> None:
    kinds: tuple[tuple[str, Callable[[FaultClass], MpsRules]], ...] = (
        ("mps_fault", lambda f: MpsRules(client_fault=f)),
        ("mps_daemon_died", lambda f: MpsRules(daemon_died=f)),
        ("mps_server_died", lambda f: MpsRules(daemon_died=f)),
    )
    for kind, rules in kinds:
        told = Told(rules(fault))
        news = ServiceNews(told.tools)
        news.hit(kind, {ONE: [7]}, "it broke")
        news.report()
        assert [found for found, *_ in told.health] == ([event] if event is not None else [])


def test_what_serves_again_is_well_again() -> None:
    told = Told()
    news = ServiceNews(told.tools)
    news.hit("mps_daemon_died", {}, "the MPS daemon died")
    news.back("it runs again")
    news.report()
    assert [event for event, *_ in told.health] == [HealthEvent.NEEDS_RESET, *WELL_AGAIN]
    assert told.of("mps_back") == [("", "it runs again")]


# -- what is served --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_card", "asked", "given"), [(100, 30, 30), (43, 43, 100), (43, 14, 32), (15, 1, 6), (58, 58, 100)]
)
def test_a_percent_of_the_card_is_more_of_an_instance(of_card: int, asked: int, given: int) -> None:
    served = Served(
        place=(CARD, "3g.40gb", 4), uuid=CARD, name="", part="", directory="", multiprocessors=0,
        percent_of_card=of_card,
    )  # fmt: skip
    assert served.share_of(Slice(device=CARD, memory_mib=1, core_percent=asked)) == given
    assert not served.whole


class Cards:
    """An inventory without cards of any driver that cuts."""

    def devices(self) -> tuple[Device, ...]:
        return (Device(uuid=CARD, index=3, vendor="x", model="A100", memory_mib=1, multiprocessor_count=108),)

    def driver_of(self, uuid: str) -> object:
        return object()


def record(profile: str = "", start: int = -1) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1024, core_percent=30, profile=profile, start=start)
    return AllocationRecord(
        id=ONE,
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1024, core_percent=30),
        placement=Placement(node=NodeName("n"), mode=ModeName("mps"), slices=(part,)),
    )


def tools(home: Path, **more: Any) -> NodeTools:
    return NodeTools(home=home, inventory=cast("Any", Cards()), library=home / "none.so", environment={}, **more)


def test_a_whole_card_is_served_under_its_own_name(tmp_path: Path) -> None:
    served = served_at(place_of(record()), tools(tmp_path))
    assert (served.uuid, served.name, served.part, served.directory) == (CARD, "device 3", "mps", "3")
    assert (served.multiprocessors, served.whole) == (108, True)


@pytest.mark.parametrize(
    ("place", "reason"),
    [(("GPU-9", "", -1), Reason.NO_DEVICES), ((CARD, "3g.40gb", 4), Reason.UNHEALTHY)],
    ids=["no card", "no instance"],
)
def test_what_is_not_there_is_not_served(tmp_path: Path, place: Any, reason: Reason) -> None:
    with pytest.raises(CalabashError) as told:
        served_at(place, tools(tmp_path))
    assert told.value.reason is reason


def test_an_allocation_whose_instance_is_gone_ends_and_one_whose_card_is_silent_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, str, str]] = []
    executor = MpsExecutor(tools(tmp_path, end=lambda *how: ended.append(how)))
    monkeypatch.setattr(Services, "forget_ills", lambda _: None)
    executor.recover([record("3g.40gb", 4)])
    executor.verify([record("3g.40gb", 4)])
    assert ended == [(ONE, Reason.UNHEALTHY, "its 3g.40gb at 4 is gone")]

    def silent(*_: object) -> Served:
        raise CalabashError("no answer", reason=Reason.TIMEOUT)

    monkeypatch.setattr(executor_module, "served_at", silent)
    executor.verify([record("3g.40gb", 4)])
    assert len(ended) == 1


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_an_allocation_that_is_just_being_made_is_left_to_those_who_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Services, "forget_ills", lambda _: None)
    ended: list[tuple[str, str, str]] = []
    executor = MpsExecutor(tools(tmp_path, end=lambda *how: ended.append(how)))
    executor.verify([record()])  # journalled, and its service is not there yet
    assert ended == []


def test_what_runs_is_written_when_it_changes_and_gone_when_nothing_runs(tmp_path: Path) -> None:
    file = tmp_path / "mps.json"
    running = [
        RunningDaemon(device=CARD, pid=12, start_time=34),
        RunningDaemon(device=CARD, pid=13, start_time=35, profile="3g.40gb", start=4),
    ]
    book = DaemonBook(file)
    book.write(lambda: running)
    assert list(DaemonBook(file).read()) == running
    file.unlink()
    book.write(lambda: running)
    assert not file.exists()
    book.write(lambda: [*running[:1], None])
    assert list(DaemonBook(file).read()) == running[:1]
    book.write(list)
    assert not file.exists()


def test_a_daemon_that_ended_while_no_pool_ran_is_forgotten_when_the_next_takes_over(tmp_path: Path) -> None:
    gone = RunningDaemon(device=CARD, pid=os.getpid(), start_time=1)  # another process has that number now
    DaemonBook(tmp_path / "mps.json").write(lambda: [gone])
    Services(cast("NodeTools", SimpleNamespace(home=tmp_path))).adopt()
    assert not (tmp_path / "mps.json").exists()


def test_several_threads_write_one_after_the_other_and_the_last_word_is_what_runs(tmp_path: Path) -> None:
    book, numbers = DaemonBook(tmp_path / "mps.json"), iter(range(1, 1000))
    now = [0]

    def running() -> list[RunningDaemon | None]:
        now[0] = next(numbers)
        return [RunningDaemon(device=CARD, pid=now[0], start_time=1)]

    def often() -> None:
        for _ in range(20):
            book.write(running)

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [one.pid for one in DaemonBook(tmp_path / "mps.json").read()] == [now[0]] == [80]


@pytest.mark.parametrize("text", ["", "{", '[{"pid": "x"}]'])
def test_a_damaged_list_of_daemons_names_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "mps.json").write_text(text)
    assert DaemonBook(tmp_path / "mps.json").read() == ()
    assert DaemonBook(tmp_path / "nowhere.json").read() == ()
