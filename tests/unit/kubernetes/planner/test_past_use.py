"""Past use of queues in the planner: a planner that is restarted or takes over continues from the status of Queue objects."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime

import pytest
from tests.unit.kubernetes.planner.virtual import Cluster, asked
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.adapters.kube.objects.resources import QUEUE, KubeQueue, KubeQueueStatus
from calabash.kubernetes.planner.apply import queue_status
from calabash.kubernetes.planner.apply.queue_status import PAST_EVERY_S, QueueStatuses, queue_statuses
from calabash.kubernetes.planner.decide.core import OPTIONS
from calabash.kubernetes.planner.state.facts import NamespaceFacts, QueueFacts
from calabash.kubernetes.planner.state.queues import common_past_use
from calabash.kubernetes.planner.watch.rules import past_uses
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube

HOUR_S = 3600.0
WITH_PAST_USE = replace(OPTIONS, half_life_s=HOUR_S)


def queue_with(name: str, device_s: float | None, at: str) -> KubeQueue:
    status = KubeQueueStatus(past_use_device_seconds=device_s, past_use_at=at)
    return KubeQueue(metadata=ObjectMeta(name=name), status=status)


def test_past_uses_are_read_from_statuses_and_invalid_ones_are_ignored() -> None:
    at = "2026-11-28T10:00:00Z"
    queues = [
        queue_with("a", 5.0, at),
        queue_with("b", 5.0, "soon"),
        queue_with("c", None, ""),
        queue_with("d", 0.0, at),
    ]
    assert past_uses(queues) == {"a": (5.0, datetime.fromisoformat(at).timestamp())}


def test_past_uses_of_different_times_are_brought_to_the_latest() -> None:
    past = {"a": (8.0, 1000.0), "b": (8.0, 1000.0 - 2 * HOUR_S)}
    assert common_past_use(past, 5000.0, HOUR_S) == ({"a": 8.0, "b": pytest.approx(2.0)}, 1000.0)
    assert common_past_use(past, 500.0, HOUR_S)[1] == 500.0, "a clock of another planner that was ahead"
    assert common_past_use(past, 5000.0, 0.0) == ({}, 5000.0)


def compete(cluster: Cluster) -> tuple[str, str]:
    """Let one pod of each queue wait for all devices, the pod of queue ``used`` first; return their UIDs."""
    found = [cluster.create(asked(GpuRequest(count=2), queue=queue)) for queue in ("used", "idle")]
    cluster.settle()
    return found[0], found[1]


def test_queue_that_used_less_comes_first_also_after_another_planner_took_over() -> None:
    team = NamespaceFacts(name="team", allowed=frozenset("*"))
    queues = [QueueFacts(name="used"), QueueFacts(name="idle")]
    cluster = Cluster({"a": 2}, queues, options=WITH_PAST_USE, namespaces=[team])
    cluster.core.namespace_changed(team)
    first = cluster.create(asked(GpuRequest(count=2), queue="used"))
    cluster.settle()
    for _ in range(60):
        cluster.now_s += HOUR_S / 60
        cluster.settle(rounds=1)
    before = queue_statuses(cluster.core.store, cluster.now_s)
    used = before["used"]
    assert used.half_life_seconds == HOUR_S
    assert used.past_use_device_seconds == pytest.approx(2 * HOUR_S * 0.5 / math.log(2), rel=0.01)
    assert used.effective_weight is not None
    assert used.effective_weight < 0.1
    assert (before["idle"].past_use_device_seconds, before["idle"].fair_share) == (0.0, 0.0)

    stored = [KubeQueue(metadata=ObjectMeta(name=name), status=status) for name, status in before.items()]
    cluster.past_use = past_uses(stored)
    cluster.now_s += HOUR_S  # without a planner; the pod runs on
    cluster.restarted()
    after = queue_statuses(cluster.core.store, cluster.now_s)["used"].past_use_device_seconds
    assert after == pytest.approx(2 * HOUR_S * 0.75 / math.log(2), rel=0.01)

    cluster.end(first)
    holder = cluster.create(GpuRequest(count=2))
    cluster.settle()
    of_used, of_idle = compete(cluster)
    cluster.now_s += 2.0
    cluster.settle()
    message = in_full(cluster.core.store.entries[of_used].message)
    assert "device-hours above its guarantee (half-life 1h)" in message
    assert "so its weight counts as" in message
    assert "instead of 1: queue (another's), which used less, comes first" in message
    cluster.end(holder)
    cluster.settle()
    assert set(cluster.bound()) == {of_idle}


def test_without_a_half_life_the_status_has_no_past_use_and_the_older_pod_comes_first() -> None:
    team = NamespaceFacts(name="team", allowed=frozenset("*"))
    queues = [QueueFacts(name="used"), QueueFacts(name="idle")]
    cluster = Cluster({"a": 2}, queues, namespaces=[team])
    cluster.past_use = {"used": (1e6, 1000.0)}
    cluster.restarted()
    statuses = queue_statuses(cluster.core.store, cluster.now_s)
    assert statuses["used"] == KubeQueueStatus()
    shares = cluster.core.store.scheduler.scheduler.tree.past()
    assert {value for _, value in shares} == {0.0}


def test_past_use_alone_is_written_once_a_minute_and_only_if_it_changed_by_a_percent() -> None:
    memory, now_s = MemoryKube(), [0.0]
    memory.create(QUEUE, {"metadata": {"name": "q"}, "spec": {}})
    statuses = QueueStatuses(memory, lambda: now_s[0])

    def written(device_s: float, running: int = 0) -> float | None:
        status = KubeQueueStatus(half_life_seconds=HOUR_S, past_use_device_seconds=device_s, running=running)
        statuses.write({"q": status})
        found = memory.get(QUEUE, "q")
        assert found is not None
        return found.status.past_use_device_seconds

    assert written(100.0) == 100.0
    now_s[0] = PAST_EVERY_S - 1
    assert written(200.0) == 100.0, "too early"
    now_s[0] = PAST_EVERY_S
    assert written(100.9) == 100.0, "too little"
    assert written(200.0) == 200.0
    assert written(300.0, running=1) == 300.0, "with another change"


def test_planner_that_takes_over_continues_from_the_status_that_the_other_wrote(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_status, "PAST_EVERY_S", 0.1)
    client = world.client
    world.node("a")
    for name in ("default", "other"):
        client.create(QUEUE, {"metadata": {"name": name}, "spec": {}})
    first = world.start(status_every_s=0.02, half_life_s=3 * HOUR_S)
    until(first.leads, "leads")
    world.pod("p", GpuRequest(count=2))
    until(lambda: released(world, "p"), "planned")

    def status(name: str) -> KubeQueueStatus:
        queue = client.get(QUEUE, name)
        assert queue is not None
        return queue.status

    until(lambda: (status("default").past_use_device_seconds or 0.0) >= 2.0, "the use to be counted")
    first.stop()
    left = status("default")
    assert left.past_use_device_seconds is not None
    second = world.start(status_every_s=0.02, half_life_s=3 * HOUR_S)
    until(second.leads, "the other leads")
    assert second._core is not None
    past = dict(second._core.store.scheduler.scheduler.tree.past())
    assert past["default"] >= left.past_use_device_seconds * 0.99
    assert past["other"] == 0.0
    until(lambda: status("default").past_use_at > left.past_use_at, "written by the other")
    assert (status("default").past_use_device_seconds or 0.0) >= left.past_use_device_seconds
