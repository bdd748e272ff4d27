"""Tests of open usage: it is counted once, together with the records that nodes send later."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.unit.kubernetes.planner.world import until
from tests.unit.kubernetes.server.served import ServedCluster

from calabash.adapters.kube.objects.resources import GpuNodeDevice, GpuNodeSlice
from calabash.adapters.store import open_store
from calabash.kubernetes.objects.tenants import NamespacePlace, TenantMap
from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.server.cluster import ClusterMoment
from calabash.kubernetes.server.open_usage import ENDED_KEPT_S, LAG_MAX_S, ClusterUsage
from calabash.kubernetes.server.state import ServedPod
from calabash.kubernetes.server.views import HeldPart
from calabash.model.allocation import UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId
from calabash_testing.clock import VirtualClock

CARD = GpuNodeDevice(uuid="GPU-1", index=0, model="A100", memory_mib=40960, health="healthy")


@dataclass(slots=True)
class Cluster:
    """A cluster with at most one slice, of 50 percent of a device and 1024 MiB, of tenant vision."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    reached: dict[tuple[str, str], float] = field(default_factory=dict)
    instances: int = 1
    usage: ClusterUsage = field(init=False)

    def __post_init__(self) -> None:
        place = NamespacePlace(tenant="vision", project="train", queue="vision/train")
        self.usage = ClusterUsage(self.moment, lambda *_: place, self.clock, reached=self.reached)

    def moment(self) -> ClusterMoment:
        facts = PodFacts(uid="u", namespace="team", name="p", created_at_s=0.0, request=None)
        part = GpuNodeSlice(
            pod="team/p",
            pod_uid="u",
            container="main",
            mode="vgpu",
            policy="fixed",
            allocation="a",
            memory_mib=1024,
            core_percent=50,
        )
        held = [HeldPart(number=0, device=CARD, part=part)] * self.instances
        pods = [ServedPod(facts=facts, phase="Running", waits=None, message="", begun_at="")]
        return ClusterMoment(devices=[], parts={"u": held}, pods=pods, tenants=TenantMap())

    def spans(self) -> list[tuple[float, float, float]]:
        """Return begin and end of each record, in seconds after the clock's start, and its GPU seconds."""
        begin_s = self.clock.now_s() - self.clock.monotonic_ns() / 1e9
        return [(r.from_s - begin_s, r.to_s - begin_s, r.allocated_gpu_s) for r in self.usage.records()[0]]

    def sent(self, until_s: float) -> None:
        """Tell the server that a usage record of the node, up to that time, has been stored."""
        begin_s = self.clock.now_s() - self.clock.monotonic_ns() / 1e9
        (record,) = Cluster(self.clock).any_record()
        self.usage.taken([replace(record, to_s=begin_s + until_s)])

    def any_record(self) -> list[UsageRecord]:
        self.usage.update(self.moment())
        self.clock.advance(1e-3)
        return list(self.usage.records()[0])


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(instances=0)
    made.usage.update(made.moment())
    made.clock.advance(10)
    return made


def near(*spans: tuple[float, float, float]) -> list[object]:
    return [pytest.approx(span, abs=0.01) for span in spans]


def test_slice_counts_from_when_it_is_seen_and_from_its_last_record(cluster: Cluster) -> None:
    cluster.instances = 1
    assert cluster.spans() == []
    cluster.clock.advance(30)
    assert cluster.spans() == near((10, 40, 15))
    assert cluster.usage.records()[1] == cluster.clock.now_s()
    cluster.sent(35)
    assert cluster.spans() == near((35, 40, 2.5))
    until_s, behind = cluster.usage.write()
    assert until_s == cluster.clock.now_s()
    assert list(behind) == ["vision"]
    assert behind["vision"] == pytest.approx(until_s - 5, abs=0.01)


def test_two_instances_of_one_device_count_both(cluster: Cluster) -> None:
    cluster.instances = 2
    cluster.spans()
    cluster.clock.advance(10)
    assert cluster.spans() == near((10, 20, 10))


def test_slice_that_is_gone_counts_until_its_last_record_has_come(cluster: Cluster) -> None:
    cluster.instances = 1
    cluster.spans()
    cluster.clock.advance(10)
    cluster.instances = 0
    assert cluster.spans() == near((10, 20, 5))
    cluster.clock.advance(30)
    assert cluster.spans() == near((10, 20, 5))
    cluster.sent(19.5)
    cluster.clock.advance(1)
    assert cluster.spans() == []
    assert cluster.usage.write()[1] == {}


def test_slice_that_is_gone_without_a_record_is_given_up(cluster: Cluster) -> None:
    cluster.instances = 1
    cluster.spans()
    cluster.clock.advance(10)
    cluster.instances = 0
    assert len(cluster.spans()) == 1
    cluster.clock.advance(ENDED_KEPT_S + 1)
    assert cluster.spans() == []


def test_slice_of_a_silent_node_counts_for_a_bounded_time_and_says_up_to_when(cluster: Cluster) -> None:
    cluster.instances = 1
    cluster.spans()
    cluster.sent(10)
    cluster.clock.advance(10 * LAG_MAX_S)
    assert cluster.spans() == near((10, 10 + LAG_MAX_S, LAG_MAX_S / 2))
    assert cluster.usage.records()[1] == pytest.approx(cluster.clock.now_s() - 9 * LAG_MAX_S, abs=0.01)


def test_slice_that_comes_back_counts_no_time_between(cluster: Cluster) -> None:
    cluster.instances = 1
    cluster.spans()
    cluster.clock.advance(10)
    cluster.sent(20)
    cluster.instances = 0
    cluster.spans()
    cluster.clock.advance(50)
    cluster.instances = 1
    cluster.spans()
    cluster.clock.advance(5)
    assert cluster.spans() == near((70, 75, 2.5))


def test_server_that_starts_goes_on_from_the_records_in_its_database() -> None:
    clock = VirtualClock()
    clock.advance(100)
    cluster = Cluster(clock, {("a", "GPU-1"): clock.now_s() - 40, ("b", "GPU-1"): clock.now_s() - 40})
    assert cluster.spans() == near((60, 100, 20))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedCluster]:
    world = ServedCluster(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    world.start(usage_port=port)
    yield world
    world.stop()


def test_usage_of_a_cluster_has_pods_that_have_just_started_and_no_time_twice(served: ServedCluster) -> None:
    served.admin.put("/v1/tenants/vision", {"guarantee": 1})
    served.namespace("vision-ns", "vision.default")
    began_s = time.time()
    served.running("vision-pod", "vision-ns")

    def hours() -> float:
        query = f"by=tenant,user&from={began_s - 3600}&to={time.time() + 60}"
        found = served.admin.get(f"/v1/usage?{query}")
        assert time.time() - 2 <= found["counted_to_s"] <= time.time()
        mine = [i for i in found["items"] if (i["tenant"], i["user"]) == ("vision", "namespace:vision-ns")]
        return mine[0]["gpu_hours"] if mine else 0.0

    until(lambda: hours() > 0, "usage of the pod")
    assert hours() <= 0.25 * (time.time() - began_s) / 3600
    store = open_store(served.database)
    (row,) = Cluster().any_record()
    hour = replace(
        row,
        allocation=AllocationId("al-1"),
        device=DeviceUuid("GPU-a0"),
        tenant="vision",
        user="namespace:vision-ns",
        from_s=began_s - 1800,
        to_s=time.time() + 30,
        allocated_gpu_s=450.0,
    )
    store.add_usage([hour])
    store.close()
    assert hours() == pytest.approx(0.125, abs=0.01), "what has a record is counted by it"
