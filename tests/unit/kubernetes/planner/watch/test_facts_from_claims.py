"""Claims on an in-memory API server: device classes, templates, allocations, and slices that nodes report."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.kubernetes.planner.claimed import ClaimCluster, by_claims
from tests.unit.kubernetes.planner.world import World, released, until

from calabash.adapters.kube.objects.claims import DEVICE_CLASS, RESOURCE_CLAIM
from calabash.adapters.kube.objects.core import POD, Pod
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.claims.device_names import EXTENDED, card_names
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import PLAN_GATE, REQUEST, SCHEDULER
from calabash.kubernetes.planner.state.facts import PodClaimFacts
from calabash.kubernetes.planner.watch.facts_from_claims import pod_claims
from calabash.kubernetes.planner.watch.facts_from_objects import gpu_node_facts, pod_facts
from calabash.kubernetes.pod_request import write_request
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.node.membership.container import claim_allocation

WHOLE = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "exclusive"'


def test_a_claim_is_counted_from_its_class_to_its_allocation(world: World) -> None:
    client = world.client
    world.node("a")
    client.patch(GPU_NODE, "a", body={"status": {"door": "claims"}}, subresource="status")
    service = world.start()
    until(service.leads, "leads")
    client.create(
        POD,
        {
            "metadata": {"name": "p", "annotations": {REQUEST: write_request(by_claims(["gpu"]))}},
            "spec": {
                "schedulerName": SCHEDULER,
                "schedulingGates": [{"name": PLAN_GATE}],
                "containers": [{"name": "main"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
            },
        },
        "team",
    )

    def told() -> tuple[Reason | None, str]:
        core = service.mirrors.core
        entries = core.store.entries if core is not None else {}
        return next(((entry.reason, in_full(entry.message)) for entry in entries.values()), (None, ""))

    until(lambda: told() == (Reason.NOT_FOUND, "claim c does not exist yet"), "no claim")
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "whole", "count": 1}}]
    client.create(RESOURCE_CLAIM, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}, "team")
    until(lambda: "device class whole does not exist" in told()[1], "no class")
    client.create(
        DEVICE_CLASS, {"metadata": {"name": "whole"}, "spec": {"selectors": [{"cel": {"expression": WHOLE}}]}}
    )
    until(lambda: released(world, "p"), "released")
    node = client.get(GPU_NODE, "a")
    assert node is not None
    names = card_names([one.device for one in gpu_node_facts(node).devices])
    (uuid, name) = max(names.items())
    result = {"request": "gpu", "driver": "calabash.dev", "pool": "a", "device": name}
    client.patch(
        RESOURCE_CLAIM,
        "c",
        "team",
        body={"status": {"allocation": {"devices": {"results": [result]}}}},
        subresource="status",
    )

    def held() -> set[str]:
        core = service.mirrors.core
        plans = [entry.plan for entry in core.store.entries.values()] if core is not None else []
        return {s.device for plan in plans if plan is not None for c in plan.containers for s in c.slices}

    until(lambda: held() == {uuid}, "the store has what was allocated")


def test_node_slices_of_claims_are_not_counted_twice(world: World) -> None:
    world.node("a")
    slices = [
        {
            "pod": "",
            "podUid": uid,
            "container": "c",
            "mode": "exclusive",
            "policy": "fixed",
            "allocation": name,
            "memoryMib": 1,
        }
        for uid, name in (("u", "other"), ("", claim_allocation("11111111-2222-3333-4444-555555555555")))
    ]
    device: dict[str, Any] = {"uuid": "GPU-0", "index": 0, "model": "A100", "memoryMib": 40960, "health": "healthy"}
    body = {"status": {"devices": [{**device, "slices": slices}]}}
    found = gpu_node_facts(world.client.patch(GPU_NODE, "a", body=body, subresource="status"))
    assert [part.pod_uid for part in found.slices] == ["u"]


def test_claims_of_a_pod_have_the_names_that_were_generated() -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": "p"},
        "spec": {
            "resourceClaims": [
                {"name": "named", "resourceClaimName": "c"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "not-yet", "resourceClaimTemplateName": "t"},
                {"name": "needless", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made"}, {"name": "needless"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "p-extended"},
        },
    }
    assert pod_claims(msgspec.convert(pod, Pod)) == (
        PodClaimFacts(name="named", claim="c"),
        PodClaimFacts(name="made", claim="p-made", template="t"),
        PodClaimFacts(name="not-yet", template="t"),
        PodClaimFacts(name="extended-resources", claim="p-extended"),
    )


def test_pod_with_a_claim_by_kube_scheduler_is_planned_on_claim_nodes_before_the_claim_exists() -> None:
    request = by_claims([EXTENDED])
    pod = {"metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": {REQUEST: write_request(request)}}}
    facts = pod_facts(msgspec.convert(pod, Pod))
    assert facts is not None
    assert (facts.claims, facts.by_claims, facts.constraints.allocation_api) == ((), True, AllocationApi.CLAIMS)
    assert facts.request == request
    cluster = ClaimCluster({"tokens": 2, "claims": 1}, allocation_apis={"claims": "claims"})
    first, second = (cluster.create(request, constraints=facts.constraints) for _ in range(2))
    cluster.decide()
    assert {uid: cluster.core.answers.planned_node(uid) for uid in (first, second)} == {first: "claims", second: None}
