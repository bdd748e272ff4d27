"""Tests of admission of pods with claims: they are gated like other pods, and claims are read again by the planner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.kubernetes.admission.test_mutate import OURS, TEAM, admitted, asking

from calabash.adapters.kube.objects.claims import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE
from calabash.kubernetes.admission.claim_pods import asked_by_name, look_up
from calabash.kubernetes.admission.scope import NO_OWNER, ClaimsAsked, NamespaceTerms, OwnerAnswer, OwnerResult
from calabash.kubernetes.admission.service import MUTATE, AdmissionService, ReviewResult
from calabash.kubernetes.admission.validate import validate
from calabash.kubernetes.claims.device_names import EXTENDED
from calabash.kubernetes.dialects.pod import AskingClaim, pod_of
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.pod_request import read_request
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest, ModeName
from calabash.transport.http1 import HttpQuestion
from calabash_testing.api_server.client import MemoryKube

WHOLE = GpuRequest(count=2, mode=ModeName("exclusive"))


def where(claims: ClaimsAsked) -> NamespaceTerms:
    return replace(TEAM, claims=claims)


def claiming(*claims: str, limits: dict[str, Any] | None = None, **more: Any) -> Any:
    tree = asking(limits or {}, **more)
    tree["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": f"the-{name}"} for name in claims]
    return tree


def test_a_pod_whose_claim_asks_for_devices_is_held_and_given_to_our_scheduler() -> None:
    tree = claiming("gpu", "nic", annotations={names.GANG: "g", names.GANG_SIZE: "4"}, labels={names.QUEUE: "default"})
    pod = admitted(tree, namespace=where({"gpu": WHOLE, "nic": None}))
    assert pod["spec"]["schedulerName"] == names.SCHEDULER
    assert pod["spec"]["schedulingGates"] == [{"name": names.PLAN_GATE}]
    assert (
        "limits" not in pod["spec"]["containers"][0]["resources"]
        or not pod["spec"]["containers"][0]["resources"]["limits"]
    )
    asked = read_request(pod["metadata"]["annotations"][names.REQUEST])
    assert asked.allocation_api is AllocationApi.CLAIMS
    assert [(part.container, part.request.count) for part in asked.containers] == [("gpu", 2)]
    assert (asked.containers[0].request.gang, asked.containers[0].request.gang_size) == ("g", 4)
    assert admitted(pod, namespace=where({"gpu": WHOLE, "nic": None})) == pod


def test_a_claim_that_is_not_there_yet_holds_its_pod_and_one_of_others_does_not() -> None:
    assert names.REQUEST in admitted(claiming("later"), namespace=where({}))["metadata"]["annotations"]
    tree = claiming("nic")
    assert admitted(tree, namespace=where({"nic": None})) == tree
    assert admitted(claiming("gpu")) == claiming("gpu"), "nobody has looked"


def test_a_pod_asks_by_one_allocation_api_and_for_what_can_be_counted() -> None:
    with pytest.raises(CalabashError, match="by names of resources and by claim gpu"):
        admitted(claiming("gpu", limits={names.GPUS: "1"}), namespace=where({"gpu": WHOLE}))
    tokens = admitted(claiming("later", limits={names.GPUS: "1"}), namespace=where({}))
    assert read_request(tokens["metadata"]["annotations"][names.REQUEST]).allocation_api is AllocationApi.TOKENS
    fault = CalabashError("all of them", reason=Reason.UNSUPPORTED)
    with pytest.raises(CalabashError, match="claim gpu: all of them"):
        admitted(claiming("gpu"), namespace=where({"gpu": fault}))


def test_a_claim_that_comes_between_two_questions_makes_no_lie_of_the_first_answer_but_other_terms_do() -> None:
    pod = admitted(claiming("gpu"), namespace=where({}))
    validate(None, pod_of(pod), "anybody", where({"gpu": WHOLE}), OURS)
    forged = admitted(claiming("gpu", annotations={names.RUN_TIME: "1h"}), namespace=where({}))
    del forged["metadata"]["annotations"][names.RUN_TIME]
    with pytest.raises(CalabashError, match="does not agree with"):
        validate(None, pod_of(forged), "anybody", where({"gpu": WHOLE}), OURS)


def test_more_claims_than_a_pod_can_have_are_refused() -> None:
    with pytest.raises(CalabashError, match="the pod cannot be read"):
        pod_of(claiming(*(f"c{i}" for i in range(65))))


def test_claims_and_templates_are_looked_up_with_their_classes() -> None:
    client = MemoryKube()
    expression = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "exclusive"'
    client.create(
        DEVICE_CLASS, {"metadata": {"name": "whole"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    )

    def spec(of: str) -> Any:
        return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": of, "count": 2}}]}}

    client.create(RESOURCE_CLAIM, {"metadata": {"name": "c", "namespace": "team"}, "spec": spec("whole")}, "team")
    client.create(RESOURCE_CLAIM, {"metadata": {"name": "odd", "namespace": "team"}, "spec": spec("gone")}, "team")
    client.create(
        RESOURCE_CLAIM_TEMPLATE,
        {"metadata": {"name": "t", "namespace": "team"}, "spec": {"spec": spec("whole")}},
        "team",
    )
    claims = [
        AskingClaim(name="there", resource_claim_name="c"),
        AskingClaim(name="made", resource_claim_template_name="t"),
        AskingClaim(name="class", resource_claim_name="odd"),
        AskingClaim(name="absent", resource_claim_name="x"),
        AskingClaim(name="elsewhere", resource_claim_name="../../secrets/x"),
        AskingClaim(name="nothing"),
    ]
    assert look_up(client, "team", claims, {}) == {"there": WHOLE, "made": WHOLE}


def test_devices_asked_for_by_names_of_device_classes_are_looked_up_as_the_claim_that_is_made_for_them() -> None:
    client = MemoryKube()
    ours = 'device.driver == "calabash.dev" && device.attributes["calabash.dev"].mode == "exclusive"'
    for name, expression, extended in (
        ("whole", ours, "example.com/gpu"),
        ("other", 'device.driver == "nic.example.com"', "example.com/nic"),
    ):
        spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": extended}
        client.create(DEVICE_CLASS, {"metadata": {"name": name}, "spec": spec})

    def found(limits: dict[str, str]) -> Any:
        by_name = asked_by_name(pod_of(asking(limits)), ("example.com/gpu", "example.com/nic"))
        return look_up(client, "team", (), by_name).get(EXTENDED, "not asked")

    assert found({"deviceclass.resource.kubernetes.io/whole": "2"}) == WHOLE
    assert found({"example.com/gpu": "2"}) == WHOLE
    assert found({"example.com/gpu": "1", "deviceclass.resource.kubernetes.io/whole": "1"}) == WHOLE
    assert found({"example.com/nic": "2"}) is None
    assert found({"example.com/of-others": "1", "cpu": "1"}) == "not asked"
    refused = found({"deviceclass.resource.kubernetes.io/later": "1"})
    assert isinstance(refused, CalabashError)
    assert "device class later does not exist" in refused.message
    with pytest.raises(CalabashError, match="deviceclass"):
        found({"deviceclass.resource.kubernetes.io/whole": "500m"})


def test_pod_that_asks_by_the_name_of_a_device_class_is_held_until_it_is_planned() -> None:
    tree = asking({"deviceclass.resource.kubernetes.io/whole": "2"}, labels={names.QUEUE: "default"})
    pod = admitted(tree, namespace=where({EXTENDED: WHOLE}))
    assert pod["spec"]["schedulerName"] == names.SCHEDULER
    assert pod["spec"]["schedulingGates"] == [{"name": names.PLAN_GATE}]
    assert pod["spec"]["containers"] == tree["spec"]["containers"]
    request = read_request(pod["metadata"]["annotations"][names.REQUEST])
    assert (request.allocation_api, [(c.container, c.request.count) for c in request.containers]) == (
        AllocationApi.CLAIMS,
        [(EXTENDED, 2)],
    )
    assert admitted(pod, namespace=where({EXTENDED: WHOLE})) == pod
    validate(None, pod_of(pod), "anybody", where({EXTENDED: WHOLE}), OURS)
    assert admitted(tree, namespace=where({EXTENDED: None})) == tree, "devices of another driver"


@pytest.mark.parametrize(
    ("tree", "claims"),
    [
        (claiming("gpu", limits={"deviceclass.resource.kubernetes.io/whole": "1"}), {"gpu": WHOLE, EXTENDED: WHOLE}),
        (claiming("later", limits={"deviceclass.resource.kubernetes.io/whole": "1"}), {EXTENDED: WHOLE}),
        (asking({"deviceclass.resource.kubernetes.io/whole": "1", names.GPUS: "1"}), {EXTENDED: WHOLE}),
        (asking({"deviceclass.resource.kubernetes.io/x": "1"}), {EXTENDED: CalabashError("no class x")}),
        (
            asking(
                {"deviceclass.resource.kubernetes.io/whole": "1"},
                annotations={"kubernetes.io/config.mirror": "x"},
            ),
            {EXTENDED: WHOLE},
        ),
    ],
    ids=["with-a-claim", "with-a-claim-to-come", "with-device-ids", "class-that-cannot-be-counted", "unplanned"],
)
def test_devices_asked_for_by_the_name_of_a_device_class_that_no_limit_would_hold_for_are_refused(
    tree: Any, claims: ClaimsAsked
) -> None:
    with pytest.raises(CalabashError, match="name"):
        admitted(tree, namespace=where(claims))


def test_pod_that_asks_by_the_name_of_a_device_class_is_refused_while_the_api_server_does_not_answer() -> None:
    class SilentApiServer:
        """Facts without an answer about claims, and a listener that ignores all results."""

        def cached_terms(self, namespace: str) -> NamespaceTerms:
            return TEAM

        read_terms = cached_terms

        def read_claims(self, *_: object) -> ClaimsAsked:
            raise CalabashError("no answer")

        def read_owner(self, *_: object) -> OwnerAnswer:
            return NO_OWNER

        def owner_answered(self, result: OwnerResult) -> None:
            pass

        def denied(self, namespace: str, name: str, error: CalabashError) -> None:
            pass

        def answered(self, path: str, result: ReviewResult, seconds: float) -> None:
            pass

    silent = SilentApiServer()
    service = AdmissionService(OURS, silent, silent)

    def answer(limits: dict[str, str]) -> Any:
        review = {"uid": "1", "operation": "CREATE", "namespace": "team", "object": asking(limits)}
        body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review})
        question = HttpQuestion(method="POST", path=MUTATE, body=body)
        return msgspec.json.decode(asyncio.run(service.handle(question)).body)["response"]

    refused = answer({"deviceclass.resource.kubernetes.io/whole": "1"})
    assert not refused["allowed"]
    assert "the API server did not answer" in refused["status"]["message"]
    assert answer({"cpu": "1"})["allowed"]
