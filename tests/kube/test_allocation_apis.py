"""Tests of both allocation APIs on one cluster: claims wait in the same queues, and no card is allocated twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kube.claiming import (
    CLAIMS,
    allocated_devices,
    claimer,
    publish,
    remove,
    report_claims,
    template,
    wait_for_reason,
)
from tests.kube.cluster import Cluster
from tests.kube.planned import Planned, planned_pod
from tests.kube.relocation import NAMESPACE, check_moved

from calabash.kubernetes.objects.names import ALLOCATION_API
from calabash.model.request import GpuRequest


@pytest.fixture(scope="module")
def planned(own_control_plane: Cluster) -> Iterator[Planned]:
    """A planner of four nodes with two cards each: two nodes offer device IDs, two offer their cards to claims.

    For one of the latter its label selects the allocation API, for the other the report of its agent.
    """
    options = {"--identity": "only", "--nominate-claims-from": "1", "--move-after": "0", "--move-interval": "0"}
    with Planned(own_control_plane, 4, 2, prefix="door", planner=options) as found:
        found.api.patch(f"/api/v1/nodes/{found.nodes[2]}", {"metadata": {"labels": {ALLOCATION_API: "claims"}}})
        report_claims(found, found.nodes[3])
        publish(found, found.nodes[2:])
        yield found


def test_gang_of_claims_is_released_together_and_each_allocation_api_has_its_nodes(planned: Planned) -> None:
    template(planned, "gang")
    gang = GpuRequest(gang="g", gang_size=4)
    planned.create("gang", [claimer(f"p{i}", gang) for i in range(3)])
    wait_for_reason(planned, "gang", "p0", "GangIncomplete")
    assert planned.bound("gang") == {}
    assert allocated_devices(planned, "gang") == []
    planned.create("tokens", [planned_pod(f"t{i}", GpuRequest()) for i in range(4)])
    planned.create("gang", [claimer("p3", gang)])
    by_claims, by_tokens = planned.wait_bound("gang", 4), planned.wait_bound("tokens", 4)
    assert set(by_tokens.values()) == set(planned.nodes[:2])
    assert set(by_claims.values()) == set(planned.nodes[2:])
    assert max(Counter(allocated_devices(planned, "gang")).values()) == 1
    planned.create("tokens", [planned_pod("fifth", GpuRequest())])
    planned.create("gang", [claimer("fifth")])
    for namespace in ("tokens", "gang"):
        wait_for_reason(planned, namespace, "fifth", "NoCapacity")
    planned.api.delete("/api/v1/namespaces/gang/pods/p0", {"gracePeriodSeconds": 0})
    assert planned.wait_bound("gang", 4)["fifth"] in planned.nodes[2:]
    remove(planned, "gang")
    planned.clear("tokens")


def test_pod_with_a_claim_over_the_queue_limit_waits_with_the_reason(planned: Planned) -> None:
    planned.make_queue("small", "quota", limit=1)
    template(planned, "quota")
    planned.create("quota", [claimer("first")])
    planned.wait_bound("quota", 1)
    planned.create("quota", [claimer("second")])
    assert "small" in wait_for_reason(planned, "quota", "second", "QueueOverLimit")["message"]
    remove(planned, "quota")


def test_queue_reclaims_what_it_deserves_from_pods_with_claims(planned: Planned) -> None:
    planned.make_queue("prod", "shop", deserved=2)
    template(planned, "borrow")
    planned.create("borrow", [claimer(f"b{i}") for i in range(4)])
    planned.wait_bound("borrow", 4)
    template(planned, "shop")
    planned.create("shop", [claimer(f"s{i}") for i in range(3)])
    planned.wait_bound("shop", 2)
    assert len(planned.bound("borrow")) == 2
    held = allocated_devices(planned, "borrow") + allocated_devices(planned, "shop")
    assert sorted(Counter(held).values()) == [1, 1, 1, 1]
    assert len(planned.bound("shop")) == 2, "the third would be more than the queue deserves"
    remove(planned, "borrow")
    planned.wait_bound("shop", 3)
    remove(planned, "shop")


def test_pod_with_a_claim_is_moved_to_make_room_for_a_large_pod(planned: Planned) -> None:
    nodes = planned.nodes[2:]
    template(planned, NAMESPACE)
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "calabash.dev", "count": 2}}]
    pair = {"metadata": {"name": "pair"}, "spec": {"devices": {"requests": requests}}}
    planned.api.create(CLAIMS.format(NAMESPACE), pair)

    def each_device_is_held_once() -> None:
        assert sorted(Counter(allocated_devices(planned, NAMESPACE)).values()) == [1, 1, 1, 1]

    check_moved(
        planned,
        nodes,
        first=[claimer(f"first-{node}", nodeSelector={"kubernetes.io/hostname": node}) for node in nodes],
        web=claimer("", movable=True),
        large=claimer("large", GpuRequest(count=2), claim="pair"),
        check=each_device_is_held_once,
    )
    remove(planned, NAMESPACE)


def test_shared_claim_counts_once_and_devices_of_another_scheduler_are_not_allocated_again(
    planned: Planned,
) -> None:
    api: Any = planned.api
    template(planned, "alien")
    alien = claimer("alien")
    del alien["metadata"]["annotations"], alien["spec"]["schedulerName"], alien["spec"]["schedulingGates"]
    planned.create("alien", [alien])
    planned.wait_bound("alien", 1)
    planned.make_namespace("shared")
    planned.create("shared", [claimer(f"s{i}", claim="later") for i in range(2)])
    assert wait_for_reason(planned, "shared", "s0", "NotFound")["message"].startswith("claim later does not exist yet")
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "calabash.dev", "count": 2}}]
    api.create(CLAIMS.format("shared"), {"metadata": {"name": "later"}, "spec": {"devices": {"requests": requests}}})
    bound = planned.wait_bound("shared", 2)
    assert len(set(bound.values())) == 1
    assert set(bound.values()).isdisjoint(planned.bound("alien").values()), "one card of that node is the alien's"
    assert max(Counter(allocated_devices(planned, "shared") + allocated_devices(planned, "alien")).values()) == 1
    remove(planned, "shared")
    remove(planned, "alien")


@pytest.mark.parametrize("taken", ["cpu", "devices"])
def test_pod_with_a_claim_is_bound_to_another_node_if_its_nominated_node_is_full(planned: Planned, taken: str) -> None:
    cluster, space = planned.cluster, f"no-{taken}"
    cluster.kill("calabash-scheduler")
    template(planned, space)
    alone = claimer("alone")
    alone["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    planned.create(space, [alone])

    def released() -> str:
        found = planned.pods(space)["alone"]
        return "" if found["spec"].get("schedulingGates") else found["status"].get("nominatedNodeName", "")

    first = cluster.wait_for(released, "it is nominated and released")
    assert first in planned.nodes[2:]
    template(planned, "first", count=2)
    other = claimer("other")
    if taken == "cpu":
        other["spec"] = {"nodeName": first, "containers": [{"name": "main", "image": "localhost/busybox:1"}]}
        other["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64"}}
    else:  # by a scheduler that does not ask the planner
        del other["spec"]["schedulerName"], other["spec"]["schedulingGates"]
        other["spec"]["nodeSelector"] = {"kubernetes.io/hostname": first}
    del other["metadata"]["annotations"]
    planned.create("first", [other])
    assert planned.wait_bound("first", 1) == {"other": first}
    cluster.start("calabash-scheduler")
    (second,) = {*planned.nodes[2:]} - {first}
    assert planned.wait_bound(space, 1) == {"alone": second}
    assert [node for node, _ in allocated_devices(planned, space)] == [second]
    remove(planned, space)
    remove(planned, "first")
    for namespace in (space, "first"):
        planned.api.delete(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates")


@pytest.mark.parametrize("program", ["planner", "calabash-scheduler"])
def test_pods_with_claims_are_all_bound_once_though_planner_and_scheduler_are_killed(
    planned: Planned, program: str
) -> None:
    cluster, space = planned.cluster, f"killed-{program}"
    template(planned, space)
    moments = random.Random(1)
    for number in range(4):
        planned.create(space, [claimer(f"p{number}-{one}") for one in range(4)])
        time.sleep(moments.uniform(0.0, 0.3))
        cluster.restart(program)
        bound = planned.wait_bound(space, 4)
        assert set(bound.values()) == set(planned.nodes[2:])
        assert sorted(Counter(allocated_devices(planned, space)).values()) == [1, 1, 1, 1]
        remove(planned, space)
