"""Tests of the planner with a real API server and kube-scheduler: pods are bound as planned, also after failures."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.planned import Planned, devices, planned_pod
from tests.kube.relocation import NAMESPACE, check_moved

from calabash.kubernetes.objects.names import PLAN, PLAN_GATE
from calabash.kubernetes.objects.plan import PodPlan, read_plan
from calabash.model.request import GpuRequest

SHARE = GpuRequest(memory_mib=8192, core_percent=25)
WHOLE = GpuRequest()
MOVING = {"--move-after": "0", "--move-interval": "0"}


@pytest.fixture(scope="module")
def planned(own_control_plane: Cluster) -> Iterator[Planned]:
    with Planned(
        own_control_plane, 100, 2, prefix="planned", planner={"--nominate-from": "50", "--identity": "only", **MOVING}
    ) as found:
        yield found


def plan(pod: dict[str, object]) -> PodPlan:
    meta = pod["metadata"]
    assert isinstance(meta, dict)
    return read_plan(meta["annotations"][PLAN])


def check(planned: Planned, namespace: str) -> None:
    """Check that every bound pod is on the node of its plan, and that no device is allocated more than it has."""
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
    remove(planned, "simple")


def filler(name: str, node: str) -> Json:
    """Return a pod that takes all processors of a node; it names the node and so needs no scheduler."""
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"requests": {"cpu": "64"}}}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}


def with_cpu(pod: Json) -> Json:
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
    return pod


def test_pod_without_devices_is_bound_to_any_node(planned: Planned) -> None:
    plain = filler("plain", "")
    plain["spec"] |= {"schedulerName": "calabash"}
    del plain["spec"]["nodeName"]
    plain["spec"]["containers"][0]["resources"] = {}
    planned.create("plain", [plain])
    planned.wait_bound("plain", 1)


def test_40_pods_whose_planned_nodes_are_full_are_bound_elsewhere_as_the_planner_agreed(planned: Planned) -> None:
    cluster = planned.cluster
    cluster.kill("calabash-scheduler")
    planned.create("full", [with_cpu(planned_pod(f"p{i:02}", GpuRequest(count=2))) for i in range(40)])
    cluster.wait_for(
        lambda: all(PLAN in pod["metadata"]["annotations"] for pod in planned.pods("full").values()), "plans"
    )
    first = {name: plan(pod).node for name, pod in planned.pods("full").items()}
    planned.create("fillers", [filler(f"f-{node}", node) for node in first.values()])
    cluster.start("calabash-scheduler")
    began = time.monotonic()
    bound = planned.wait_bound("full", 40)
    print(f"bound elsewhere after {time.monotonic() - began:.2f} s of the scheduler's start")
    assert set(bound.values()).isdisjoint(first.values())
    assert max(Counter(bound.values()).values()) == 1
    check(planned, "full")
    remove(planned, "full", "fillers")


def remove(planned: Planned, *namespaces: str) -> None:
    for namespace in namespaces:
        planned.clear(namespace)


def test_gang_is_bound_as_a_whole_though_the_planner_is_killed_while_it_releases_it(planned: Planned) -> None:
    cluster = planned.cluster
    gang = GpuRequest(gang="g", gang_size=64)
    planned.create("gang", [planned_pod(f"p{i:02}", gang) for i in range(63)])
    planned.create("beside", [planned_pod("later", SHARE)])
    planned.wait_bound("beside", 1)  # the decision that places the later pod knew the 63 members
    assert planned.bound("gang") == {}
    planned.create("gang", [planned_pod("p63", gang)])
    cluster.wait_for(
        lambda: any(PLAN in pod["metadata"]["annotations"] for pod in planned.pods("gang").values()),
        "a plan",
        every_s=0.0,
    )
    cluster.kill("planner")
    at_death = len(planned.bound("gang"))
    cluster.start("planner")
    planned.wait_bound("gang", 64)
    print(f"{at_death} of 64 were bound when the planner was killed")
    check(planned, "gang")
    remove(planned, "gang", "beside")


def test_pods_of_others_do_not_notice_a_dead_planner_and_ours_go_on_when_it_is_back(planned: Planned) -> None:
    cluster = planned.cluster
    cluster.kill("planner")
    planned.create("dead", [planned_pod(f"p{i}", SHARE) for i in range(10)])
    others = filler("other", "")
    del others["spec"]["nodeName"]
    others["spec"]["containers"][0]["resources"] = {}
    planned.create("others", [others])
    planned.wait_bound("others", 1)
    assert planned.bound("dead") == {}
    cluster.start("planner")
    began = time.monotonic()
    planned.wait_bound("dead", 10)
    print(f"ours were bound {time.monotonic() - began:.2f} s after the planner was started")
    check(planned, "dead")
    remove(planned, "dead", "others")


def test_why_a_pod_waits_stands_in_its_condition_and_in_one_event(planned: Planned) -> None:
    api = planned.api
    planned.create("why", [planned_pod("large", GpuRequest(count=8))])

    def said() -> Json | None:
        conditions = api.get("/api/v1/namespaces/why/pods/large")["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled" and c["reason"] == "TooLarge"), None)

    condition = planned.cluster.wait_for(said, "the condition")
    assert condition is not None
    assert "0/100 nodes are available" in condition["message"]

    def events() -> list[Json]:
        return [e for e in api.get("/api/v1/namespaces/why/events")["items"] if e["reason"] == "TooLarge"]

    assert len(planned.cluster.wait_for(events, "the event, which is written after the condition")) == 1
    remove(planned, "why")


def test_restarted_planner_reclaims_from_the_borrowing_pods_that_were_bound_last(
    planned: Planned,
) -> None:
    planned.make_queue("prod", "shop", deserved=200)
    gates = [{"name": PLAN_GATE}, {"name": "example.com/later"}]
    late = {f"late{i}" for i in range(10)}
    planned.create("borrow", [planned_pod(name, GpuRequest(count=2), schedulingGates=gates) for name in sorted(late)])
    planned.create("borrow", [planned_pod(f"p{i:03}", GpuRequest(count=2)) for i in range(90)])
    planned.wait_bound("borrow", 90)
    time.sleep(1.1)  # the binding time of a pod has whole seconds; a longer sleep changes nothing
    for name in late:
        planned.api.patch(f"/api/v1/namespaces/borrow/pods/{name}", {"spec": {"schedulingGates": gates[:1]}}, "merge")
    planned.wait_bound("borrow", 100)
    planned.cluster.kill("planner")
    planned.cluster.start("planner")
    planned.create("shop", [planned_pod(f"s{i}", GpuRequest(count=2)) for i in range(3)])
    planned.wait_bound("shop", 3)
    left = set(planned.bound("borrow"))
    assert len(left) == 97
    assert len(late - left) == 3, "created first, and bound last"
    check(planned, "shop")
    remove(planned, "borrow", "shop")


def within(nodes: list[str], pod: Json) -> Json:
    """Return the pod with a node affinity that allows only these nodes."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return pod


def test_pod_of_a_deployment_is_moved_to_make_room_for_a_large_pod(planned: Planned) -> None:
    nodes = planned.nodes[20:22]
    check_moved(
        planned,
        nodes,
        first=[planned_pod(f"first-{node}", WHOLE, nodeSelector=on(node)) for node in nodes],
        web=within(nodes, planned_pod("", WHOLE, movable=True)),
        large=within(nodes, planned_pod("large", GpuRequest(count=2))),
        check=lambda: check(planned, NAMESPACE),
    )
    remove(planned, NAMESPACE)


def on(node: str) -> Json:
    return {"kubernetes.io/hostname": node}


def refuses(planned: Planned, name: str, node: str) -> bool:
    """Create a pod for a node, wait for the planner's answer and delete the pod; return True if it was refused."""

    def answer() -> str:
        pod = planned.pods("probes")[name]
        if PLAN in pod["metadata"]["annotations"]:
            return "planned"
        reasons = [c.get("reason", "") for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        return "".join(reason for reason in reasons if reason != "SchedulingGated")

    planned.create("probes", [planned_pod(name, SHARE, nodeSelector=on(node))])
    found = planned.cluster.wait_for(answer, f"an answer for {name}")
    planned.clear("probes")
    return found != "planned"


def test_refused_pod_is_retried_when_only_the_planner_knows_of_free_devices(planned: Planned) -> None:
    cluster, api = planned.cluster, planned.api
    node = planned.nodes[7]
    path = f"/apis/calabash.dev/v1alpha1/gpunodes/{node}/status"
    cluster.kill("calabash-scheduler")
    planned.create("again", [planned_pod("p", WHOLE, nodeSelector={"kubernetes.io/hostname": node})])
    cluster.wait_for(lambda: PLAN in planned.pods("again")["p"]["metadata"]["annotations"], "a plan")
    api.patch(path, {"status": {"devices": [{**one, "health": "lost"} for one in devices(2)]}})
    numbers = itertools.count()
    cluster.wait_for(
        lambda: refuses(planned, f"probe{next(numbers)}", node), "the planner to know that the devices are lost"
    )
    cluster.start("calabash-scheduler")

    def refused() -> bool:
        conditions = planned.pods("again")["p"]["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["reason"] == "Unschedulable" for c in conditions)

    cluster.wait_for(refused, "the refusal")
    assert planned.bound("again") == {}
    api.patch(path, {"status": {"devices": devices(2)}})
    began = time.monotonic()
    planned.wait_bound("again", 1)
    print(f"bound {time.monotonic() - began:.2f} s after its device was well again")
    remove(planned, "again")
