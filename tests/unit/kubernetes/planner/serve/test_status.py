"""Probes and metrics of the planner."""

from __future__ import annotations

import http.client
import re
from typing import Any

import pytest
from tests.unit.kubernetes.planner.world import World, until
from tests.unit.kubernetes.test_part_metrics import check

from calabash.adapters.kube import SkippedObject
from calabash.adapters.kube.objects.core import POD
from calabash.api.part_metrics import ClusterPart
from calabash.kubernetes.planner.serve.status import PlannerStatus
from calabash.kubernetes.planner.service import PlannerService
from calabash.kubernetes.telemetry import Telemetry
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube


def ask(service: PlannerService, path: str, method: str = "GET") -> tuple[int, str]:
    assert service._status is not None
    host, port = service._status.address
    line = http.client.HTTPConnection(host, port, timeout=60)
    line.request(method, path)
    reply = line.getresponse()
    text = reply.read().decode()
    line.close()
    return reply.status, text


def test_leading_planner_is_ready_and_counts_skipped_objects(world: World) -> None:
    service = world.start(status_host="127.0.0.1", status_port=0)
    until(service.leads, "leads")
    assert ask(service, "/readyz") == (200, "ok")
    assert ask(service, "/livez") == (200, "ok")
    assert ask(service, "/filter")[0] == 404
    assert ask(service, "/readyz", "POST")[0] in (405, 413)
    service.skipped.object_skipped(
        SkippedObject(kind=POD, namespace="n", name="p", uid="u", resource_version="1", error="cannot be read")
    )
    status, text = ask(service, "/metrics")
    assert status == 200
    assert "calabash_planner_leads 1\n" in text
    assert "calabash_planner_ready 1\n" in text
    assert 'calabash_planner_skipped_objects_total{kind="pods"} 1\n' in text
    check(ClusterPart.PLANNER, text)
    assert re.search(r"^calabash_planner_decision_seconds_count [1-9]", text, re.MULTILINE)
    assert 'calabash_planner_pods{stage="waiting"} 0\n' in text
    assert re.search(r'^calabash_kube_lists_total{kind="pods"} [1-9]', text, re.MULTILINE)


def test_follower_is_ready_while_another_planner_leads(world: World) -> None:
    first = world.start()
    until(first.leads, "leads")
    second = world.start(status_host="127.0.0.1", status_port=0)
    until(lambda: ask(second, "/readyz") == (200, "ok"), "ready")
    assert not second.leads()
    assert "calabash_planner_leads 0\n" in ask(second, "/metrics")[1]


def test_planner_whose_mirrors_are_not_in_sync_is_not_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state after an outage in which no planner led, and both pods became ready."""
    pages = MemoryKube.pages

    def failing(self: MemoryKube, kind: Any, *words: Any, **more: Any) -> Any:
        if kind.plural == "resourceclaims":
            raise RecursionError("maximum recursion depth exceeded")
        return pages(self, kind, *words, **more)

    monkeypatch.setattr(MemoryKube, "pages", failing)
    service = world.start(status_host="127.0.0.1", status_port=0)
    until(lambda: service.lead.term() == 1, "the lease is taken")
    until(lambda: service.unsynced() == ["groups and claims"], "the rest is read")
    status, text = ask(service, "/readyz")
    assert (status, text) == (503, "not read from the API server yet: groups and claims")
    assert "calabash_planner_ready 0\n" in ask(service, "/metrics")[1]


class Planner:
    """State of a planner that leads or not."""

    led = False
    healthy = True

    def leads(self) -> bool:
        return self.led

    def is_healthy(self) -> bool:
        return self.healthy

    def unsynced(self) -> list[str]:
        return []

    figures = Telemetry(ClusterPart.PLANNER)

    def skipped_counts(self) -> dict[str, int]:
        return {}

    def pods_by_stage(self) -> dict[str, int]:
        return {}

    def nodes(self) -> int:
        return 0


def test_planner_is_not_ready_if_no_planner_leads_or_the_leases_cannot_be_read() -> None:
    planner, answers, now = Planner(), [False], [0.0]
    asked: list[float] = []

    def any_leader() -> bool:
        asked.append(now[0])
        if answers[-1] is None:
            raise CalabashError("the API server is away", reason=Reason.API_DOWN)
        return answers[-1]

    status = PlannerStatus(planner, any_leader, now_s=lambda: now[0])
    assert status.fault() == "no planner leads: nothing is planned"
    answers.append(True)
    assert status.fault() != "", "not asked again at once"
    now[0] = 6.0
    assert status.fault() == ""
    answers.append(None)  # type: ignore[arg-type]
    now[0] = 12.0
    assert "is not known" in status.fault()
    assert asked == [0.0, 6.0, 12.0]
    planner.led = True
    assert status.fault() == ""
    planner.healthy = False
    assert status.fault() == "no decision was made for long"
