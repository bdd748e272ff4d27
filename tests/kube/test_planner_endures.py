"""Tests of the planner under injected faults: no device is allocated twice, no pod is lost, and planning resumes."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator

import pytest
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.planned import Planned, planned_pod
from tests.kube.planner_faults import (
    Lines,
    Replicas,
    Stream,
    has_plan,
    over_committed,
    plan_of,
    planner_behind_lines,
    seconds_until_next,
    wait_until_bound,
)

from calabash.model.request import GpuRequest

KINDS = (
    GpuRequest(memory_mib=8192, core_percent=25),
    GpuRequest(),
    GpuRequest(memory_mib=20000, core_percent=50),
    GpuRequest(count=2, memory_mib=4096, core_percent=20),
)


@pytest.fixture(scope="module")
def reached(own_control_plane: Cluster) -> Iterator[tuple[Planned, Lines]]:
    with planner_behind_lines(own_control_plane, 4, prefix="endures") as found:
        yield found


@pytest.fixture(scope="module")
def planned(reached: tuple[Planned, Lines]) -> Planned:
    return reached[0]


@pytest.fixture(scope="module")
def lines(reached: tuple[Planned, Lines]) -> Lines:
    return reached[1]


@pytest.fixture(autouse=True)
def lines_of_a_test_end_with_it(lines: Lines) -> Iterator[None]:
    """Cut the planner's connections after each test, because it would keep as many as it ever needed at once."""
    yield
    lines.cut()


def pod(number: int) -> Json:
    return planned_pod(f"p{number:04}", KINDS[number % len(KINDS)])


def judge(planned: Planned, namespace: str, count: int) -> None:
    """Wait until all pods of a namespace are bound, check that no device is over-committed, and delete the pods."""
    found = wait_until_bound(planned, namespace, count)
    assert len(found) == count
    assert over_committed(found) == []
    planned.clear(namespace)


@pytest.mark.parametrize("component", ["apiserver", "etcd"])
def test_no_device_is_given_twice_while_the_api_server_or_etcd_is_killed_in_a_stream_of_pods(
    planned: Planned, component: str
) -> None:
    space = f"stream-{component}"
    with Stream(planned, space, pod, per_s=30) as stream:
        planned.wait_bound(space, 20)
        planned.cluster.kill(component)
        time.sleep(1)  # the outage has this length at least
        planned.cluster.start(component)
        decided_s = seconds_until_next(planned, space, has_plan)
    print(f"first decision {decided_s:.2f} s after the {component} answered again")
    judge(planned, space, stream.count)  # bench.kube_endures measures the time to the first decision


def test_no_device_is_given_twice_while_every_connection_of_the_planner_is_broken_100_times(
    planned: Planned, lines: Lines
) -> None:
    random.seed(7)
    broken = 0
    with Stream(planned, "broken", pod, per_s=30) as stream:
        for _ in range(100):
            time.sleep(random.uniform(0.0, 0.15))
            broken += lines.cut()
    print(f"{broken} connections were broken")
    judge(planned, "broken", stream.count)


def test_hanging_planner_delays_no_foreign_pods_and_binds_its_own_when_it_continues(planned: Planned) -> None:
    cluster = planned.cluster
    gang = [planned_pod(f"g{i:02}", GpuRequest(gang="g", gang_size=16, core_percent=50)) for i in range(16)]
    planned.create("hangs", gang[:-1])
    cluster.namespaces.signal("planner", signal.SIGSTOP)
    planned.create("hangs", [gang[-1], *[pod(i) for i in range(10)]])
    plain = {"name": "main", "image": "localhost/busybox:1"}
    planned.create("others", [{"metadata": {"name": "other"}, "spec": {"containers": [plain]}}])
    planned.wait_bound("others", 1)
    time.sleep(3)  # the planner hangs for this long at least
    cluster.namespaces.signal("planner", signal.SIGCONT)
    began = time.monotonic()
    planned.wait_bound("hangs", 26)
    print(f"all were bound {time.monotonic() - began:.2f} s after the planner went on")
    judge(planned, "hangs", 26)


def test_gang_is_bound_once_and_whole_though_its_leader_is_stopped_and_continues_when_another_leads(
    planned: Planned,
) -> None:
    cluster = planned.cluster
    planned.close()
    with Replicas(cluster, term_s=4.0) as replicas:
        first = replicas.wait_for_leader()
        gang = GpuRequest(gang="g", gang_size=48, core_percent=50, memory_mib=1024)
        planned.create("gang", [planned_pod(f"g{i:02}", gang) for i in range(48)])
        cluster.wait_for(lambda: any(map(has_plan, planned.pods("gang").values())), "a plan", every_s=0.0)
        cluster.namespaces.signal(first, signal.SIGSTOP)
        began = time.monotonic()
        planned.create("after", [pod(i) for i in range(60)])
        second = replicas.wait_for_leader(other_than=first)
        cluster.wait_for(lambda: any(map(has_plan, planned.pods("after").values())), "a decision")
        print(f"{second} decided {time.monotonic() - began:.2f} s after {first} was stopped")
        cluster.namespaces.signal(first, signal.SIGCONT)
        planned.wait_bound("gang", 48)
        planned.wait_bound("after", 60)
        cluster.kill(second)
        began = time.monotonic()
        planned.create("last", [pod(i) for i in range(20)])
        planned.wait_bound("last", 20)
        print(f"{first} had bound 20 pods {time.monotonic() - began:.2f} s after {second} was killed")
        pods = [found for space in ("gang", "after", "last") for found in planned.pods(space).values()]
        assert over_committed(pods) == []
        nodes = {plan.node for found in pods if (plan := plan_of(found)) is not None}
        assert len(nodes) <= len(planned.nodes)
