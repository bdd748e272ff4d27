"""Tests of claims with a kube-scheduler that does not call the planner.

The planner confines a pod to some nodes by node affinity, and kube-scheduler allocates the pod's claims on one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.kube.api import Json
from tests.kube.claiming import allocated_devices, claimer, publish, remove, report_claims, template, wait_for_reason
from tests.kube.cluster import Cluster
from tests.kube.planned import Planned, confined_to

from calabash.model.request import GpuRequest

STOCK = "default-scheduler"


@pytest.fixture(scope="module")
def planned(own_control_plane: Cluster) -> Iterator[Planned]:
    """A planner of three nodes with two cards each, which offer their cards to claims."""
    options = {"--handshake": "affinity", "--identity": "only"}
    with Planned(own_control_plane, 3, 2, prefix="confined", planner=options) as found:
        for node in found.nodes:
            report_claims(found, node)
        publish(found, found.nodes)
        yield found


def asking(name: str, terms: GpuRequest | None = None) -> Json:
    return claimer(name, terms, scheduler=STOCK)


def test_gang_is_released_together_inside_its_nodes_and_a_pod_without_free_devices_waits(planned: Planned) -> None:
    template(planned, "gang")
    gang = GpuRequest(gang="g", gang_size=4)
    planned.create("gang", [asking(f"p{i}", gang) for i in range(3)])
    wait_for_reason(planned, "gang", "p0", "GangIncomplete")
    assert planned.bound("gang") == {}
    assert allocated_devices(planned, "gang") == []
    planned.create("gang", [asking("p3", gang)])
    bound = planned.wait_bound("gang", 4)
    for name, pod in planned.pods("gang").items():
        assert bound[name] in confined_to(pod)
    assert Counter(bound.values()) == Counter(node for node, _ in allocated_devices(planned, "gang"))
    planned.create("gang", [asking(f"q{i}") for i in range(3)])
    planned.wait_bound("gang", 6)
    assert max(Counter(allocated_devices(planned, "gang")).values()) == 1
    last = next(name for name in planned.pods("gang") if name not in planned.bound("gang"))
    wait_for_reason(planned, "gang", last, "NoCapacity")
    planned.api.delete("/api/v1/namespaces/gang/pods/p0", {"gracePeriodSeconds": 0})
    cluster = planned.cluster
    cluster.wait_for(lambda: last in planned.bound("gang"), f"{last} has what p0 gave back")
    assert max(Counter(allocated_devices(planned, "gang")).values()) == 1
    remove(planned, "gang")


def test_what_goes_past_the_planner_is_given_to_nobody_else(planned: Planned) -> None:
    template(planned, "alien")
    aliens = [asking(f"a{i}") for i in range(5)]
    for alien in aliens:
        del alien["metadata"]["annotations"], alien["spec"]["schedulingGates"]
    planned.create("alien", aliens)
    planned.wait_bound("alien", 5)
    planned.make_namespace("ours")
    template(planned, "ours", count=2)
    planned.create("ours", [asking("two")])
    wait_for_reason(planned, "ours", "two", "NoCapacity")
    remove(planned, "alien")
    planned.wait_bound("ours", 1)
    assert len(allocated_devices(planned, "ours")) == 2
    remove(planned, "ours")
