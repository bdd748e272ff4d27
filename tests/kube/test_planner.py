"""The planner with a real API server and a real kube-scheduler: pods go where it planned, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.kube.cluster import Cluster
from tests.kube.planned import Planned, planned_pod

from calabash.kubernetes.names import PLAN
from calabash.kubernetes.plan import PodPlan, read_plan
from calabash.model.request import GpuRequest

SHARE = GpuRequest(memory_mib=8192, core_percent=25)
WHOLE = GpuRequest()


@pytest.fixture(scope="module")
def planned(own_control_plane: Cluster) -> Iterator[Planned]:
    with Planned(own_control_plane, 100, 2, prefix="planned", planner={"--nominate-from": "50"}) as found:
        yield found


def plan(pod: dict[str, object]) -> PodPlan:
    meta = pod["metadata"]
    assert isinstance(meta, dict)
    return read_plan(meta["annotations"][PLAN])


def check(planned: Planned, namespace: str) -> None:
    """Every bound pod is where its plan says, and no device has more than it has."""
    cores: dict[tuple[str, str], int] = {}
    for pod in planned.pods(namespace).values():
        node = pod["spec"].get("nodeName")
        if node:
            found = plan(pod)
            assert found.node == node
            for container in found.containers:
                for part in container.slices:
                    key = (node, part.device)
                    cores[key] = cores.get(key, 0) + part.core_percent
    assert max(cores.values()) <= 100


def test_pods_are_bound_where_they_were_planned(planned: Planned) -> None:
    pods = [planned_pod(f"p{i:03}", SHARE if i % 2 else WHOLE) for i in range(100)]
    planned.create("simple", pods)
    planned.wait_bound("simple", 100)
    check(planned, "simple")
    planned.cluster.kubectl("delete", "namespace", "simple", "--wait=false")
