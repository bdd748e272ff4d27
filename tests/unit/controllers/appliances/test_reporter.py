"""Reports of the states of replicas to the pool."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.api.networks import NetworkReport
from calabash.controllers.appliances.replica_state import ReplicaState
from calabash.controllers.appliances.reporter import ApplianceReporter
from calabash.model.errors import CalabashError


class Pool:
    """Pool that records reports, or is unreachable."""

    def __init__(self) -> None:
        self.there = True
        self.told: list[tuple[str, bool | None, str, str, bool]] = []

    def report(self, reports: Sequence[NetworkReport]) -> None:
        if not self.there:
            raise CalabashError("gone")
        for one in reports:
            (found,) = one.status.conditions
            self.told.append((one.name, found.holds, found.reason, found.message, one.partial))


def state(
    *, active: bool, item: str = "red/site", kind: str = "lb", failure: str = "", **healthy: bool
) -> ReplicaState:
    return ReplicaState(item=item, kind=kind, replica=f"{item}-1", active=active, healthy=healthy, failure=failure)


def test_changed_states_of_all_hosts_are_reported_and_repeated_after_a_failure() -> None:
    pool = Pool()
    reporter = ApplianceReporter(pool.report, hosts=2, all_hosts=True, now_s=lambda: 7.0)
    reporter.update("g1", [state(active=True, web1=True, web2=True)])
    reporter.send()
    assert pool.told == []  # the other host has not been updated yet
    reporter.update("g2", [state(active=False, web1=False)])
    reporter.send()
    reporter.send()
    assert pool.told == [("red/site", True, "backends_well", "2 of 2 backends are healthy", True)]
    pool.there = False
    reporter.update("g1", [state(active=True, web1=False, web2=False)])
    reporter.send()
    pool.there = True
    reporter.send()
    assert pool.told[1:] == [
        ("red/site", False, "no_backend", "0 of 2 backends are healthy; unhealthy: web1, web2", True)
    ]
    reporter.update("g1", [state(active=False)])
    reporter.send()
    assert pool.told[2][1:3] == (False, "no_active_replica")


def test_single_host_reports_only_objects_that_are_active_there() -> None:
    pool = Pool()
    reporter = ApplianceReporter(pool.report, hosts=1, all_hosts=False)
    reporter.update(
        "g1", [state(active=False), state(active=True, item="red/out", kind="gateway", failure="nft refuses")]
    )
    reporter.send()
    assert pool.told == [("red/out", True, "degraded", "red/out-1: nft refuses", True)]


def test_balancer_without_backend_states_is_reported_as_unknown() -> None:
    pool = Pool()
    reporter = ApplianceReporter(pool.report, hosts=1, all_hosts=True)
    reporter.update("g1", [state(active=True)])
    reporter.send()
    assert pool.told == [("red/site", None, "backends_unknown", "HAProxy does not respond", True)]
