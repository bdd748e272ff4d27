"""Notices about faults and recoveries of an MPS service."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.node.mps_world import ONE, TWO, Told

from calabash.model.messages import in_full
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.policy import FaultClass, MpsRules
from calabash.node.modes.mps.daemon import Clients
from calabash.node.modes.mps.notices import RECOVERY_EVENTS, ServiceNotices


def test_affected_allocations_are_told_their_clients_and_the_faulting_allocation() -> None:
    told, clients = Told(), Clients({7: ONE, 8: TWO, 9: TWO}.get)
    clients.update([7, 8, 9])
    news = ServiceNotices(told.tools)
    news.report_fault(7, clients)
    events = dict(told.events_of("mps_fault"))
    assert set(events) == {ONE, TWO}
    assert "a fatal fault of allocation one (process 7) occurred on device 0 and affected clients 8, 9:" in events[TWO]
    assert in_full(told.notes[ONE]) == events[ONE]
    assert told.health == []  # not under the locks that are held here
    news.report()
    ((event, cause, tenants),) = told.health
    assert (event, tenants) == (HealthEvent.APP_FAULT, frozenset({ONE, TWO}))
    assert in_full(cause).startswith("a fatal fault of allocation one")


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
