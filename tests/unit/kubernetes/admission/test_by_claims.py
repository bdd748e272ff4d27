"""Pods that ask by claims: held like all others, in their own terms, and believed no more than the claims themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.kubernetes.admission.test_mutate import OURS, TEAM, admitted, asking

from calabash.kubernetes import names
from calabash.kubernetes.admission.by_claims import look_up
from calabash.kubernetes.admission.scope import ClaimsAsked, NamespaceTerms
from calabash.kubernetes.admission.validate import validate
from calabash.kubernetes.asked import read_request
from calabash.kubernetes.dialects.pod import AskingClaim, pod_of
from calabash.kubernetes.doors import NodeDoor
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest, ModeName
from calabash.seams.kube.claims import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE
from calabash.seams.kube.memory import MemoryKube

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
    assert asked.door is NodeDoor.CLAIMS
    assert [(part.container, part.request.count) for part in asked.containers] == [("gpu", 2)]
    assert (asked.containers[0].request.gang, asked.containers[0].request.gang_size) == ("g", 4)
    assert admitted(pod, namespace=where({"gpu": WHOLE, "nic": None})) == pod


def test_a_claim_that_is_not_there_yet_holds_its_pod_and_one_of_others_does_not() -> None:
    assert names.REQUEST in admitted(claiming("later"), namespace=where({}))["metadata"]["annotations"]
    tree = claiming("nic")
    assert admitted(tree, namespace=where({"nic": None})) == tree
    assert admitted(claiming("gpu")) == claiming("gpu"), "nobody has looked"


def test_a_pod_asks_by_one_door_and_for_what_can_be_counted() -> None:
    with pytest.raises(CalabashError, match="by names of resources and by claim gpu"):
        admitted(claiming("gpu", limits={names.GPUS: "1"}), namespace=where({"gpu": WHOLE}))
    tokens = admitted(claiming("later", limits={names.GPUS: "1"}), namespace=where({}))
    assert read_request(tokens["metadata"]["annotations"][names.REQUEST]).door is NodeDoor.TOKENS
    fault = CalabashError("all of them", reason=Reason.UNSUPPORTED)
    with pytest.raises(CalabashError, match="claim gpu: all of them"):
        admitted(claiming("gpu"), namespace=where({"gpu": fault}))


def test_a_claim_that_comes_between_two_questions_makes_no_lie_of_the_first_answer_but_other_terms_do() -> None:
    pod = admitted(claiming("gpu"), namespace=where({}))
    validate(None, pod_of(pod), "anybody", where({"gpu": WHOLE}), OURS)
    forged = admitted(claiming("gpu", annotations={names.RUN_TIME: "1h"}), namespace=where({}))
    del forged["metadata"]["annotations"][names.RUN_TIME]
    with pytest.raises(CalabashError, match="does not say what"):
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
    assert look_up(client, "team", claims) == {"there": WHOLE, "made": WHOLE}
