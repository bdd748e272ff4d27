"""A claim belongs to pods of its own namespace only, even if its owner reference names a pod of another one."""

from __future__ import annotations

import msgspec
import pytest

from calabash.adapters.kube.objects.core import Pod
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.planner.state.claims import Claims
from calabash.kubernetes.planner.state.facts import ClaimFacts, PodClaimFacts, PodFacts
from calabash.kubernetes.planner.watch.facts_from_objects import pod_facts
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest
from calabash.model.request import GpuRequest

PART = ContainerRequest(container="gpu", kind=ContainerKind.MAIN, request=GpuRequest())
ASKED = PodRequest(dialect="claims", containers=(PART,), allocation_api=AllocationApi.CLAIMS)


def pod(namespace: str, uid: str, *claims: PodClaimFacts) -> PodFacts:
    return PodFacts(uid=uid, namespace=namespace, name=uid, created_at_s=1.0, request=ASKED, claims=claims)


def claim(namespace: str, name: str, *, owner: str = "", fault: str = "", node: str = "") -> ClaimFacts:
    return ClaimFacts(
        uid=f"{namespace}-{name}",
        namespace=namespace,
        name=name,
        owner=owner,
        pod_claim="gpu" if owner else "",
        request=None if fault else GpuRequest(count=2),
        fault=fault,
        node=node,
    )


VICTIM = pod("alice", "victim", PodClaimFacts(name="gpu", template="t"))
OWN = claim("alice", "own", owner="victim")


@pytest.mark.parametrize("first", ["forged", "own"])
def test_forged_owner_in_another_namespace_does_not_replace_the_claim_of_a_pod(first: str) -> None:
    claims = Claims()
    forged = claim("mallory", "forged", owner="victim", fault="marker")
    for one in (forged, OWN) if first == "forged" else (OWN, forged):
        claims.put(one)
    found = claims.resolve(VICTIM)
    assert found is not None
    assert found.fault == ""
    assert [one.key for one in claims.held_by("victim")] == [("alice", "own")]
    claims.remove(forged.key)
    assert claims.resolve(VICTIM) == found


def test_pod_waits_for_its_claim_though_another_namespace_has_one_with_its_owner() -> None:
    claims = Claims()
    claims.put(claim("mallory", "forged", owner="victim"))
    found = claims.resolve(VICTIM)
    assert found is not None
    assert "does not exist yet" in found.waits_for
    assert claims.held_by("victim") == []


def test_pod_is_not_evicted_with_a_pod_whose_claim_names_it_as_owner() -> None:
    claims = Claims()
    claims.put(OWN)
    claims.resolve(VICTIM)
    claims.put(claim("mallory", "forged", owner="victim", node="n"))
    claims.resolve(pod("mallory", "holder", PodClaimFacts(name="gpu", claim="forged")))
    assert [one.key for one in claims.held_by("holder")] == [("mallory", "forged")]
    assert claims.sharers("holder") == []
    assert [one.uid for one in claims.users(("mallory", "forged"))] == ["holder"]


def test_claim_of_the_same_name_in_another_namespace_is_another() -> None:
    claims = Claims()
    claims.put(claim("mallory", "shared", node="n"))
    found = claims.resolve(pod("alice", "victim", PodClaimFacts(name="gpu", claim="shared")))
    assert found is not None
    assert "does not exist yet" in found.waits_for


def test_owner_of_another_namespace_with_the_same_uid_is_another() -> None:
    """The planner keeps moves of pods and refusals of nodes for each owner."""
    owner = [{"kind": "ReplicaSet", "name": "r", "uid": "u-1", "controller": True}]
    seen = [
        pod_facts(
            msgspec.convert(
                {
                    "metadata": {"name": "p", "namespace": namespace, "uid": namespace, "ownerReferences": owner},
                    "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]},
                },
                Pod,
            )
        )
        for namespace in ("alice", "mallory")
    ]
    assert len({one.owner for one in seen if one is not None}) == 2
