"""Clients, shares, notices, targets and records of mode mps."""

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
from calabash.node.modes.mps.clients import ADMITTED_MAX, Clients
from calabash.node.modes.mps.executor import MpsExecutor
from calabash.node.modes.mps.notices import RECOVERY_EVENTS, ServiceNotices
from calabash.node.modes.mps.records import MpsDaemonFile, RunningDaemon
from calabash.node.modes.mps.services import Services
from calabash.node.modes.mps.shares import Share, Shares
from calabash.node.modes.mps.target import Served, place_of, served_at
from calabash.node.modes.protocol import NodeTools

# -- clients ---------------------------------------------------------------------------------------------------------


def test_client_is_known_for_a_short_time_after_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clients = Clients({7: ONE, 8: TWO}.get)
    clients.update([7, 8, 9])
    now[0] += mps_clients.RECENT_S / 2
    clients.update([8])
    assert clients.by_allocation() == {ONE: [7], TWO: [8]}
    now[0] += mps_clients.RECENT_S * 0.6
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


# -- shares ----------------------------------------------------------------------------------------------------------

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
    shares.window = shares.share_of(ONE)
    assert shares.wanted() == Share(percent=50, memory_mib=100)
    shares.window = None
    assert shares.wanted() == Share(percent=10, memory_mib=100)
    shares.leave(TWO)
    assert shares.share_of(TWO) is None
    assert shares.wanted() == Share(percent=50, memory_mib=100)
    shares.leave(ONE)
    shares.leave(ONE)
    assert shares.idle


# -- news ------------------------------------------------------------------------------------------------------------


def test_affected_allocations_are_told_their_clients_and_the_faulting_allocation() -> None:
    told, clients = Told(), Clients({7: ONE, 8: TWO, 9: TWO}.get)
    clients.update([7, 8, 9])
    news = ServiceNotices(told.tools)
    news.report_fault(7, clients)
    events = dict(told.events_of("mps_fault"))
    assert set(events) == {ONE, TWO}
    assert "a fatal fault of allocation one (process 7) occurred on device 0 and affected clients 8, 9:" in unmarked(
        events[TWO]
    )
    assert told.notes[ONE] == events[ONE]
    assert told.health == []  # not under the locks that are held here
    news.report()
    ((event, cause, tenants),) = told.health
    assert (event, tenants) == (HealthEvent.APP_FAULT, frozenset({ONE, TWO}))
    assert unmarked(cause).startswith("a fatal fault of allocation one")


@pytest.mark.parametrize(("culprit", "by"), [(-1, "a client"), (55, "process 55")])
def test_faulting_client_without_a_known_allocation_is_named_by_its_pid(culprit: int, by: str) -> None:
    told = Told()
    ServiceNotices(told.tools).report_fault(culprit, Clients(lambda _: None))
    assert told.events_of("mps_fault") == [("", f"a fatal fault of {by} occurred on device 0 and affected no client")]


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
def test_health_event_of_a_fault_follows_the_operators_rules(fault: FaultClass, event: HealthEvent | None) -> None:
    kinds: tuple[tuple[str, Callable[[FaultClass], MpsRules]], ...] = (
        ("mps_fault", lambda f: MpsRules(client_fault=f)),
        ("mps_daemon_died", lambda f: MpsRules(daemon_died=f)),
        ("mps_server_died", lambda f: MpsRules(daemon_died=f)),
    )
    for kind, rules in kinds:
        told = Told(rules(fault))
        news = ServiceNotices(told.tools)
        news.report_failure(kind, {ONE: [7]}, "it broke")
        news.report()
        assert [found for found, *_ in told.health] == ([event] if event is not None else [])


def test_recovered_service_is_healthy_again() -> None:
    told = Told()
    news = ServiceNotices(told.tools)
    news.report_failure("mps_daemon_died", {}, "the MPS daemon died")
    news.report_recovery("it runs again")
    news.report()
    assert [event for event, *_ in told.health] == [HealthEvent.NEEDS_RESET, *RECOVERY_EVENTS]
    assert told.events_of("mps_back") == [("", "it runs again")]


# -- what is served --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_card", "asked", "given"), [(100, 30, 30), (43, 43, 100), (43, 14, 32), (15, 1, 6), (58, 58, 100)]
)
def test_share_of_the_card_is_converted_to_a_share_of_the_instance(of_card: int, asked: int, given: int) -> None:
    served = Served(
        place=(CARD, "3g.40gb", 4), uuid=CARD, name="", part="", directory="", multiprocessors=0,
        percent_of_card=of_card,
    )  # fmt: skip
    assert served.share_of(Slice(device=CARD, memory_mib=1, core_percent=asked)) == given
    assert not served.whole


class Cards:
    """Inventory whose driver has no MIG."""

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


def test_target_of_a_whole_card_has_its_uuid(tmp_path: Path) -> None:
    served = served_at(place_of(record()), tools(tmp_path))
    assert (served.uuid, served.name, served.part, served.directory) == (CARD, "device 3", "mps", "3")
    assert (served.multiprocessors, served.whole) == (108, True)


@pytest.mark.parametrize(
    ("place", "reason"),
    [(("GPU-9", "", -1), Reason.NO_DEVICES), ((CARD, "3g.40gb", 4), Reason.UNHEALTHY)],
    ids=["no card", "no instance"],
)
def test_missing_card_or_instance_has_no_target(tmp_path: Path, place: Any, reason: Reason) -> None:
    with pytest.raises(CalabashError) as told:
        served_at(place, tools(tmp_path))
    assert told.value.reason is reason


def test_allocation_ends_if_its_instance_is_gone_and_not_if_the_card_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, str, str]] = []
    executor = MpsExecutor(tools(tmp_path, end=lambda *how: ended.append(how)))
    monkeypatch.setattr(Services, "clear_failures", lambda _: None)
    executor.recover([record("3g.40gb", 4)])
    executor.verify([record("3g.40gb", 4)])
    assert ended == [(ONE, Reason.UNHEALTHY, "its 3g.40gb at 4 does not exist any more")]

    def silent(*_: object) -> Served:
        raise CalabashError("no answer", reason=Reason.TIMEOUT)

    monkeypatch.setattr(executor_module, "served_at", silent)
    executor.verify([record("3g.40gb", 4)])
    assert len(ended) == 1


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_allocation_without_a_service_yet_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Services, "clear_failures", lambda _: None)
    ended: list[tuple[str, str, str]] = []
    executor = MpsExecutor(tools(tmp_path, end=lambda *how: ended.append(how)))
    executor.verify([record()])  # journalled, and its service is not there yet
    assert ended == []


def test_file_of_daemons_is_written_on_change_and_removed_when_empty(tmp_path: Path) -> None:
    file = tmp_path / "mps.json"
    running = [
        RunningDaemon(device=CARD, pid=12, start_time=34),
        RunningDaemon(device=CARD, pid=13, start_time=35, profile="3g.40gb", start=4),
    ]
    daemons = MpsDaemonFile(file)
    daemons.write(lambda: running)
    assert list(MpsDaemonFile(file).read()) == running
    file.unlink()
    daemons.write(lambda: running)
    assert not file.exists()
    daemons.write(lambda: [*running[:1], None])
    assert list(MpsDaemonFile(file).read()) == running[:1]
    daemons.write(list)
    assert not file.exists()


def test_daemon_that_ended_without_a_pool_is_removed_from_the_file_at_adoption(tmp_path: Path) -> None:
    gone = RunningDaemon(device=CARD, pid=os.getpid(), start_time=1)  # another process has that number now
    MpsDaemonFile(tmp_path / "mps.json").write(lambda: [gone])
    Services(cast("NodeTools", SimpleNamespace(home=tmp_path))).adopt()
    assert not (tmp_path / "mps.json").exists()


def test_concurrent_writes_leave_the_latest_daemons_in_the_file(tmp_path: Path) -> None:
    file, numbers = MpsDaemonFile(tmp_path / "mps.json"), iter(range(1, 1000))
    now = [0]

    def running() -> list[RunningDaemon | None]:
        now[0] = next(numbers)
        return [RunningDaemon(device=CARD, pid=now[0], start_time=1)]

    def often() -> None:
        for _ in range(20):
            file.write(running)

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [one.pid for one in MpsDaemonFile(tmp_path / "mps.json").read()] == [now[0]] == [80]


@pytest.mark.parametrize("text", ["", "{", '[{"pid": "x"}]'])
def test_damaged_file_of_daemons_is_treated_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "mps.json").write_text(text)
    assert MpsDaemonFile(tmp_path / "mps.json").read() == ()
    assert MpsDaemonFile(tmp_path / "nowhere.json").read() == ()
