"""Tests of one manifest for each kind of the table, and of the gang that it forms."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from calabash.kubernetes.gangs.explain import Explanation, amounts_or_reason, explain_file
from calabash.kubernetes.gangs.gang import Gang, TopologyRequest
from calabash.kubernetes.gangs.table import OWNERS, table_with

MANIFESTS = Path(__file__).with_name("manifests")


class Expected(NamedTuple):
    """A gang in short.

    Args:
        roles: number of pods of each role and, behind a slash, its minimum if it differs.
        minimum: members that start together.
        waits_for: members for which each step of the start waits.
        devices: devices of a member of each role that has a pod template.
        copies: number of gangs.
        topology: levels, with ``?`` if they are preferred.
    """

    roles: dict[str, str]
    minimum: int
    waits_for: tuple[int, ...]
    devices: dict[str, int]
    copies: int = 1
    topology: tuple[str, ...] = ()


_RAY = {"head": "1", "small": "2", "hosts": "4", "idle": "0"}
_RAY_DEVICES = {"head": 0, "small": 2, "hosts": 2, "idle": 2}
_MASTER = Expected({"master": "1", "worker": "3"}, 4, (4,), {"master": 0, "worker": 2})
EXPECTED: dict[str, list[Expected]] = {
    "annotated-pod": [Expected({"members": "3"}, 3, (3,), {"members": 2})],
    "coscheduling-pod-group": [Expected({"members": "5"}, 5, (5,), {})],
    "indexed-job": [Expected({"worker": "3"}, 3, (3,), {"worker": 2}, topology=("worker: example.com/rack?",))],
    "jax-job": [Expected({"worker": "4"}, 4, (4,), {"worker": 2})],
    "job-set": [
        Expected(
            {"coordinator": "1", "slice": "8"},
            9,
            (9,),
            {"coordinator": 0, "slice": 2},
            topology=("slice: rack",),
        )
    ],
    "job-set-in-order": [Expected({"data": "2", "learners": "6"}, 8, (2, 6), {"data": 0, "learners": 2})],
    "job-with-minimum": [Expected({"worker": "6"}, 2, (2,), {"worker": 0})],
    "kai-pod-group": [
        Expected(
            {"prefill": "4", "decode": "2", "others": "2"},
            8,
            (8,),
            {},
            topology=("example.com/block?", "prefill: example.com/rack"),
        )
    ],
    "kueue-pods": [Expected({"members": "2"}, 2, (2,), {"members": 2})],
    "leader-first": [Expected({"leader": "1", "worker": "3"}, 4, (1, 3), {"leader": 2, "worker": 2})],
    "leader-worker-set": [
        Expected(
            {"leader": "1", "worker": "4"},
            5,
            (5,),
            {"leader": 0, "worker": 2},
            copies=3,
            topology=("example.com/rack",),
        )
    ],
    "mpi-job": [Expected({"launcher": "1", "worker": "2"}, 3, (2, 1), {"launcher": 0, "worker": 2})],
    "mpi-job-v1": [Expected({"launcher": "1", "worker": "2"}, 3, (3,), {"launcher": 0, "worker": 2})],
    "paddle-job": [_MASTER],
    "pod-clique-set": [
        Expected(
            {"router": "1", "leader": "2/1", "worker": "6/2"},
            4,
            (4,),
            {"router": 0, "leader": 2, "worker": 2},
            copies=2,
            topology=("block",),
        )
    ],
    "pod-group": [Expected({"members": "8"}, 8, (8,), {}, topology=("example.com/rack",))],
    "pytorch-job": [_MASTER],
    "pytorch-job-elastic": [Expected({"worker": "4/2"}, 2, (2,), {"worker": 2})],
    "ray-cluster": [Expected(_RAY, 7, (7,), _RAY_DEVICES)],
    "ray-job": [Expected(_RAY, 7, (7,), _RAY_DEVICES)],
    "ray-service": [Expected(_RAY, 7, (7,), _RAY_DEVICES)],
    "spark-application": [Expected({"driver": "1", "executor": "6"}, 7, (1, 6), {"driver": 0, "executor": 1})],
    "stateful-set": [Expected({"replica": "3"}, 3, (3,), {"replica": 2})],
    "tf-job": [
        Expected({"chief": "1", "ps": "2", "worker": "4"}, 5, (5,), {"chief": 2, "ps": 0, "worker": 2}),
    ],
    "train-job": [Expected({"node": "4"}, 4, (4,), {"node": 8})],
    "volcano-job": [
        Expected({"ps": "1", "default1": "4/3"}, 4, (4,), {"ps": 0, "default1": 2}, topology=("tier 2?",)),
    ],
    "volcano-pod-group": [Expected({"members": "3"}, 3, (3,), {})],
    "workload": [
        Expected({"readers": "1"}, 1, (1,), {}),
        Expected({"trainers": "4"}, 4, (4,), {}, topology=("trainers: example.com/block",)),
    ],
    "xgboost-job": [_MASTER],
}


def short(gang: Gang) -> Expected:
    """Return a gang in short."""
    roles = {
        role.name: str(role.count) if role.minimum == role.count else f"{role.count}/{role.minimum}"
        for role in gang.roles
    }
    amounts = {role.name: amounts_or_reason(role)[0] for role in gang.roles}
    return Expected(
        roles=roles,
        minimum=gang.minimum,
        waits_for=tuple(gang.waits_for(step) for step in range(gang.steps if gang.in_steps else 1)),
        devices={name: one.devices for name, one in amounts.items() if one is not None},
        copies=gang.copies,
        topology=tuple(level(request) for request in gang.topology),
    )


def level(request: TopologyRequest) -> str:
    """Return a topology request in short."""
    text = request.level if request.required else f"{request.level}?"
    return f"{request.role}: {text}" if request.role else text


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_manifest_forms_exactly_this_gang(name: str) -> None:
    (found,) = explain_file((MANIFESTS / f"{name}.yaml").read_text(), name, table_with())
    assert (found.reason, found.invalid) == ("", False)
    assert [short(gang) for gang in found.gangs] == EXPECTED[name]


def test_every_manifest_is_tested_and_every_kind_has_one() -> None:
    files = {path.stem: path.read_text() for path in MANIFESTS.glob("*.yaml")}
    assert set(files) == set(EXPECTED)
    found = {(one.api_version.rpartition("/")[0], one.kind) for text in files.values() for one in described(text)}
    assert found == {(owner.group, owner.kind) for owner in OWNERS} | {("", "Pod")}


def described(text: str) -> list[Explanation]:
    return explain_file(text, "", table_with())


def test_every_version_of_a_kind_is_understood_and_another_is_not() -> None:
    text = (MANIFESTS / "pod-group.yaml").read_text()
    for version in ("v1beta1", "v1alpha3", "v1alpha2"):
        (found,) = described(text.replace("v1beta1", version))
        assert found.gangs[0].size == 8
    (other,) = described(text.replace("v1beta1", "v2"))
    assert other.gangs == ()
    assert other.reason == "version v2 of PodGroup is not known, only v1beta1, v1alpha3, v1alpha2"


def test_subgroups_are_the_replicas_of_a_role_with_several_pods_each() -> None:
    (job_set,) = described((MANIFESTS / "job-set.yaml").read_text())
    (ray,) = described((MANIFESTS / "ray-cluster.yaml").read_text())
    assert [(r.name, r.subgroups, r.subgroup_size) for r in job_set.gangs[0].roles] == [
        ("coordinator", 0, 0),
        ("slice", 2, 4),
    ]
    assert [(r.name, r.maximum) for r in ray.gangs[0].roles if r.maximum is not None] == [("hosts", 12)]


def test_subgroup_size_of_a_leader_worker_set_divides_its_workers() -> None:
    text = (MANIFESTS / "leader-worker-set.yaml").read_text()
    (found,) = described(text.replace("    size: 5", "    size: 5\n    subGroupPolicy: {subGroupSize: 2}"))
    assert [(role.subgroups, role.subgroup_size) for role in found.gangs[0].roles] == [(0, 0), (2, 2)]
