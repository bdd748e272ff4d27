"""Tests of ``kubectl calabash queue``: the tree, amounts from the planner's status or the pods, and the order of waiting."""

from __future__ import annotations

import json
import re

import pytest
from tests.unit.cli.kube_world import World, asks, planned, run

from calabash.adapters.kube.objects.core import POD
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.adapters.kube.objects.resources import KubeQueue, KubeQueueSpec
from calabash.cli.kubectl.queue import tree


def lines(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()]


def test_the_tree_shows_what_the_planner_tells(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"allocated": 3.5, "guaranteed": 2.0, "borrowed": 1.5, "running": 4, "waiting": 2}
    world.queue("research", told, deserved=4, limit=8)
    world.queue("vision", told, parent="research", deserved=2)
    assert run("queue") == 0
    assert lines(capsys.readouterr().out) == [
        ["NAME", "GUARANTEE", "LIMIT", "ALLOCATED", "BORROWED", "RUNNING", "WAITING"],
        ["default", "0", "-", "0", "0", "1", "0"],
        ["research", "4", "8", "3.5", "1.5", "4", "2"],
        ["· vision", "2", "-", "3.5", "1.5", "4", "2"],
    ]
    assert run("queue", "-o", "name") == 0
    assert capsys.readouterr().out.split() == ["default", "research", "vision"]


def test_where_no_planner_tells_the_pods_do_and_parents_have_the_sum(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.queue("research", deserved=0.25)
    world.queue("vision", parent="research", deserved=0.1)
    world.label("team", "vision")
    uid = world.pod("held", namespace="team", node="node1").metadata.uid
    plan = planned(uid, ("GPU-0", 1536, 30), ("GPU-1", 15360, 10))  # the larger of time and memory: 0.3 and all
    world.client.patch(POD, "held", "team", body={"metadata": {"annotations": plan}})
    world.pod("waits", namespace="team", waits="no room")
    assert run("queue", "research", "-o", "json") == 0
    research, vision = json.loads(capsys.readouterr().out)["items"]
    assert (vision["allocated"], vision["guaranteed"], vision["borrowed"]) == (1.3, 0.1, 1.2)
    assert (research["allocated"], research["guaranteed"], research["borrowed"]) == (1.3, 0.25, 1.05)
    assert [(q["running"], q["waiting"], q["from"]) for q in (research, vision)] == [(1, 1, "pods")] * 2
    assert [w["pod"] for w in vision["waiting_pods"]] == ["waits"]
    assert research["waiting_pods"] == []


def test_tree_of_a_chain_of_thousands_of_queues_is_listed_without_a_recursion_error() -> None:
    names = [f"c{i:04}" for i in range(3000)]
    chain = [
        KubeQueue(metadata=ObjectMeta(name=name), spec=KubeQueueSpec(parent=parent))
        for parent, name in zip(["", *names], names, strict=False)
    ]
    assert [(depth, queue.metadata.name) for depth, queue in tree(chain)] == list(enumerate(names))


def test_what_waits_stands_in_its_turn_with_its_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    uid = world.pod("held", namespace="team", node="node1").metadata.uid
    world.client.patch(POD, "held", "team", body={"metadata": {"annotations": planned(uid, ("GPU-1", 0, 100))}})
    world.pod("greedy", namespace="team", waits="no room", annotations=asks())
    world.pod("modest", waits="no room", annotations=asks(core_percent=30, memory_milli=500))
    world.pod(
        "urgent", namespace="team", waits="no room", spec={"priority": 9}, annotations=asks(gang="g", gang_size=2)
    )
    assert run("queue", "default", "-o", "wide") == 0
    said = lines(capsys.readouterr().out.partition("\n\n")[2])
    assert said[0] == ["QUEUE", "POSITION", "POD", "PRIORITY", "GANG", "REQUEST", "AGE", "REASON", "MESSAGE"]
    assert [line[1:6] for line in said[1:]] == [
        ["1", "team/urgent", "9", "g", "100% whole"],
        ["2", "default/modest", "0", "-", "30% 50% of memory"],
        ["3", "team/greedy", "0", "-", "100% whole"],
    ]
    assert {tuple(line[-2:]) for line in said[1:]} == {("NoMemory", "no room")}


def test_without_a_name_only_the_first_ten_are_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        world.pod(f"waits-{number:02}", waits="no room")
    assert run("queue") == 0
    said = capsys.readouterr().out
    assert said.count("default/waits-") == 10
    assert said.splitlines()[-1] == "… and 2 more; `kubectl calabash queue NAME` shows all pods of a queue"
    assert run("queue", "default") == 0
    assert capsys.readouterr().out.count("default/waits-") == 12


def test_who_may_not_see_all_pods_sees_what_the_planner_tells(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.queue("told", {"allocated": 2.0, "waiting": 1})
    world.queue("untold")
    world.may_not("pods")
    assert run("queue") == 0
    said = capsys.readouterr().out.splitlines()
    assert lines("\n".join(said))[2] == ["told", "0", "-", "2", "0", "0", "1"]
    assert lines("\n".join(said))[3] == ["untold", "0", "-", "-", "-", "-", "-"]
    assert said[-1] == "waiting pods are not shown: you may not list pods of all namespaces"


def test_a_tree_that_cannot_be_is_shown_all_the_same() -> None:
    def queue(name: str, parent: str) -> KubeQueue:
        return KubeQueue(metadata=ObjectMeta(name=name), spec=KubeQueueSpec(parent=parent))

    found = tree([queue("b", "a"), queue("a", "b"), queue("c", "gone"), queue("d", "c")])
    assert [(depth, q.metadata.name) for depth, q in found] == [(0, "c"), (1, "d"), (0, "a"), (1, "b")]
