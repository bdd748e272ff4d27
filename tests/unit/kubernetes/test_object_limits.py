"""Tests of the limits of objects that users write: memory is bounded, and objects of ordinary size are unchanged."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.unit.kubernetes.planner.virtual import asked

from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.adapters.kube.objects.core import Namespace, Pod, PodDisruptionBudget
from calabash.adapters.kube.objects.groups import MemberGroup, PodGroup
from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.dialects.translate import translate
from calabash.kubernetes.object_limits import (
    LABEL_BYTES_MAX,
    REST_BYTES_MAX,
    bounded_annotations,
    bounded_labels,
    keep_node_pod,
)
from calabash.kubernetes.objects.names import GROUP, MODELS, PLAN, PLAN_GATE, QUEUE, REQUEST, SCHEDULER
from calabash.kubernetes.objects.plan import PLAN_BYTES_MAX
from calabash.kubernetes.planner.watch.facts_from_claims import claim_facts, keep_claim
from calabash.kubernetes.planner.watch.facts_from_objects import budget_facts, group_size, pod_facts
from calabash.kubernetes.planner.watch.pruning import PodPruner, keep_budget, keep_group, keep_namespace
from calabash.kubernetes.pod_request import REQUEST_BYTES_MAX, write_request
from calabash.kubernetes.server.state import ClusterState
from calabash.model.request import GpuRequest
from calabash_testing.api_server.client import MemoryKube

EXAMPLES = Path(__file__).parents[3] / "examples" / "kube"
LARGE = 261_000
Keep = Callable[[Any], Any]


def many(prefix: str, value: str = "x", total: int = LARGE) -> dict[str, str]:
    """Return pairs of unique names and values of about this many bytes."""
    return {f"{prefix}{number:06}": value * 30 for number in range(total // (len(prefix) + 36))}


def plain(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"p{number}",
            "namespace": "mallory",
            "uid": f"u{number}",
            "annotations": {REQUEST: write_request(asked(GpuRequest()))},
            "labels": {"app": "a"},
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "schedulingGates": [{"name": PLAN_GATE}],
            "containers": [{"name": "main"}],
        },
        "status": {"phase": "Pending"},
    }


def words(tag: str) -> list[str]:
    return [f"{name}{value}" for name, value in many(tag).items()]


def long(tag: str) -> str:
    return tag * (LARGE // len(tag))


_LIMITS = {"limits": {"calabash.dev/gpus": "1"}}
HOSTILE: dict[str, Callable[[str], dict[str, Any]]] = {
    "annotations that begin like ours": lambda tag: {"metadata": {"annotations": {f"{GROUP}x{tag}": long(tag)}}},
    "unknown annotations of our group": lambda tag: {"metadata": {"annotations": many(f"{GROUP}/{tag}")}},
    "request": lambda tag: {"metadata": {"annotations": {REQUEST: long(tag)}}},
    "plan": lambda tag: {"metadata": {"annotations": {PLAN: long(tag)}}},
    "annotation of a dialect": lambda tag: {
        "metadata": {"annotations": {REQUEST: None, MODELS: long(tag)}},
        "spec": {"containers": [{"name": "main", "resources": _LIMITS}]},
    },
    "labels": lambda tag: {"metadata": {"labels": many(tag)}},
    "node selector": lambda tag: {"spec": {"nodeSelector": many(tag)}},
    "tolerations": lambda tag: {"spec": {"tolerations": [{"key": key, "operator": "Exists"} for key in words(tag)]}},
    "affinity": lambda tag: {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "k", "operator": "In", "values": words(tag)}]}
                        ]
                    }
                }
            }
        }
    },
    "gates": lambda tag: {"spec": {"schedulingGates": [{"name": PLAN_GATE}, *({"name": name} for name in words(tag))]}},
    "claims": lambda tag: {"spec": {"resourceClaims": [{"name": n, "resourceClaimName": n} for n in words(tag)]}},
    "containers": lambda tag: {
        "metadata": {"annotations": {REQUEST: None}},
        "spec": {"containers": [{"name": name, "image": name, "resources": _LIMITS} for name in words(tag)]},
    },
    "owners": lambda tag: {"metadata": {"ownerReferences": [{"kind": "Job", "name": n, "uid": n} for n in words(tag)]}},
    "finalizers": lambda tag: {"metadata": {"finalizers": words(tag)}},
    "status": lambda tag: {
        "status": {
            "conditions": [{"type": name, "message": tag} for name in words(tag)],
            "reason": "OutOf",
            "message": long(tag),
            "resourceClaimStatuses": [{"name": name} for name in words(tag)],
        }
    },
    "condition": lambda tag: {
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": long(tag)}]
        }
    },
}
PLACES = list(HOSTILE)


def hostile(where: str, number: int) -> dict[str, Any]:
    """Return a pod with about 261 KB in one place, different from that of every other pod."""
    return merged(plain(number), HOSTILE[where](f"n{number:04}-"))


def merged(value: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Apply a merge patch."""
    found = {key: one for key, one in value.items() if key not in more}
    for key, one in more.items():
        if one is not None:
            found[key] = merged(value.get(key, {}), one) if isinstance(one, dict) else one
    return found


def server_keep() -> Keep:
    keep = ClusterState(MemoryKube())._pod_mirror._cache._keep
    assert keep is not None
    return keep


@pytest.mark.parametrize("keep", [PodPruner(), server_keep(), keep_node_pod], ids=["planner", "server", "agent"])
@pytest.mark.parametrize("where", PLACES)
def test_pod_of_261_kb_is_held_in_a_part_of_that(where: str, keep: Keep) -> None:
    """Planner, server and agent keep only a small part of a large pod, measured in bytes that stay allocated."""
    count = 12
    texts = [msgspec.json.encode(hostile(where, number)) for number in range(count)]
    assert min(map(len, texts)) > LARGE * 0.9
    decoder = msgspec.json.Decoder(Pod)
    keep(decoder.decode(msgspec.json.encode(plain(count))))
    gc.collect()
    tracemalloc.start()
    try:
        held = [keep(decoder.decode(text)) for text in texts]
        seen = [pod_facts(pod) for pod in held]
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    assert len(held) == len(seen) == count
    assert size < LARGE * 0.35, f"{size:.0f} bytes of each"


@pytest.mark.parametrize("where", PLACES)
def test_pod_that_is_too_large_waits_with_a_reason_or_is_read_as_ever(where: str) -> None:
    facts = pod_facts(PodPruner()(msgspec.convert(hostile(where, 1), Pod)))
    assert facts is not None
    same = {"annotations that begin like ours", "unknown annotations of our group", "plan", "labels", "owners"}
    same |= {"finalizers", "status", "condition"}
    assert (facts.fault == "") == (where in same), facts.fault
    if where not in same:
        assert "at most" in facts.fault
        assert "hint:" in facts.fault
    assert facts.gated


def test_request_and_plan_of_the_largest_size_are_held_whole() -> None:
    largest = {REQUEST: "x" * REQUEST_BYTES_MAX, PLAN: "y" * PLAN_BYTES_MAX}
    assert bounded_annotations(largest) == largest
    larger = bounded_annotations({name: f"{text}z" for name, text in largest.items()})
    assert max(map(len, larger.values())) < 100
    assert str(REQUEST_BYTES_MAX + 1) in larger[REQUEST]


def test_labels_that_name_the_queue_are_held_before_others() -> None:
    labels = {**many("a"), QUEUE: "team", "scheduling.x-k8s.io/pod-group": "g"}
    held = bounded_labels(labels)
    assert (held[QUEUE], held["scheduling.x-k8s.io/pod-group"]) == ("team", "g")
    assert sum(len(n) + len(v) for n, v in held.items()) <= LABEL_BYTES_MAX
    assert held == bounded_labels(dict(reversed(labels.items()))), "the order does not matter"
    assert bounded_labels({"a": "b"}) == {"a": "b"}


@pytest.mark.parametrize("path", sorted((EXAMPLES / "dialects").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_dialect_asks_for_the_same_in_what_is_held(path: Path) -> None:
    """The annotations and labels that are kept of a pod are all that any dialect reads."""
    tree = yaml.safe_load(path.read_text())
    tree["metadata"].setdefault("annotations", {})["others.dev/note"] = "x"
    whole = translate(pod_of(tree))
    meta = tree["metadata"]
    meta["annotations"], meta["labels"] = (
        bounded_annotations(meta["annotations"]),
        bounded_labels(meta.get("labels", {})),
    )
    assert translate(pod_of(tree)) == whole
    assert whole is not None


def claim(**devices: Any) -> ResourceClaim:
    return msgspec.convert(
        {
            "metadata": {"name": "c", "namespace": "n", "uid": "u", "annotations": {"a": "x" * LARGE}},
            "spec": {"devices": devices},
        },
        ResourceClaim,
    )


def test_parameters_for_other_drivers_are_not_held() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    held = keep_claim(
        claim(
            requests=[{"name": "r", "exactly": {"deviceClassName": "x"}}],
            config=[
                {"opaque": {"driver": "gpu.example.com", "parameters": {"a": deep}}},
                {"opaque": {"driver": "calabash.dev", "parameters": {"b": 1}}},
            ],
        )
    )
    assert [c.opaque.driver for c in held.spec.devices.config if c.opaque] == ["calabash.dev"]
    assert held.metadata.annotations == {}
    assert len(msgspec.json.encode(held)) < 400


@pytest.mark.parametrize("deep", [False, True])
def test_claim_that_is_too_large_has_a_fault(deep: bool) -> None:
    """A claim that is too large is invalid, and does not count as one that requests nothing."""
    parameters: Any = "x" * LARGE
    if deep:
        parameters = 1
        for _ in range(900):
            parameters = [parameters]
        parameters = [parameters, "x" * LARGE]
    held = keep_claim(claim(config=[{"opaque": {"driver": "calabash.dev", "parameters": parameters}}]))
    assert len(msgspec.json.encode(held)) < 400
    facts = claim_facts(held, {}, lambda _node: ())
    assert facts.is_ours
    assert f"at most {REST_BYTES_MAX}" in facts.fault


def test_budgets_groups_and_namespaces_are_held_without_the_rest() -> None:
    meta = {
        "name": "b",
        "namespace": "n",
        "uid": "u",
        "annotations": many("a"),
        "labels": many("l"),
        "finalizers": ["f"],
    }
    selector = {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]}
    status = {"disruptionsAllowed": 2, "disruptedPods": many("p")}
    budget = msgspec.convert({"metadata": meta, "spec": {"selector": selector}, "status": status}, PodDisruptionBudget)
    assert budget_facts(keep_budget(budget)) == budget_facts(budget)
    large = msgspec.convert({"metadata": meta, "spec": {"selector": {"matchLabels": many("k")}}}, PodDisruptionBudget)
    assert budget_facts(keep_budget(large)).terms is None
    gang = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    group = msgspec.convert({"metadata": meta, "spec": gang}, PodGroup)
    older = msgspec.convert({"metadata": meta, "spec": {"minMember": 4, "minResources": many("r")}}, MemberGroup)
    assert (group_size(keep_group(group)), group_size(keep_group(older))) == (3, 4)
    namespace = msgspec.convert({"metadata": meta}, Namespace)
    for held in (
        keep_budget(budget),
        keep_budget(large),
        keep_group(group),
        keep_group(older),
        keep_namespace(namespace),
    ):
        assert len(msgspec.json.encode(held)) < 400
