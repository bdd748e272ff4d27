"""Handover of nodes: no node is planned by two planners, whatever each of them has seen."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from calabash.adapters.kube.objects.core import NODE
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.objects.names import PLANNED_BY, POOL, TAKEN_FROM
from calabash.kubernetes.objects.shards import Shard
from calabash.kubernetes.planner.lead.handover import AGAIN_S, HELD_S, Handover, Labelled
from calabash_testing.api_server.client import MemoryKube

NODES = ("n0", "n1")
POOLS = ("a", "b")


class LateView:
    """View of one planner on its nodes, which is out of date until the test updates it."""

    def __init__(self, client: MemoryKube, shard: Shard) -> None:
        self._client = client
        self._shard = shard
        self.pool: set[str] = set()
        self.labels: dict[str, Labelled] = {}
        self.unlabelled: dict[str, str] = {}
        self.open_nodes: set[str] = set()
        self.listed: set[str] = set()
        self.lists_at_once = True

    def hear_of_nodes(self) -> None:
        found = self._client.list(NODE, label_selector=self._shard.selector).items
        self.pool = {node.metadata.name for node in found}
        self._close()

    def hear_of_labels(self) -> None:
        found = self._client.list(GPU_NODE, label_selector=f"{PLANNED_BY}={self._shard.lease}").items
        self.labels = {
            node.metadata.name: Labelled(node.metadata.resource_version, node.metadata.labels.get(TAKEN_FROM, ""))
            for node in found
        }
        self._close()

    def hear_of_the_free(self) -> None:
        found = self._client.list(GPU_NODE, label_selector=f"!{PLANNED_BY}").items
        self.unlabelled = {node.metadata.name: node.metadata.resource_version for node in found}

    def hear_of_all(self) -> None:
        self.hear_of_nodes()
        self.hear_of_labels()
        self.hear_of_the_free()

    def _close(self) -> None:
        both = self.pool & self.labels.keys()
        self.open_nodes &= both
        self.listed &= both

    def in_pool(self) -> set[str]:
        return set(self.pool)

    def labelled(self) -> dict[str, Labelled]:
        return dict(self.labels)

    def free(self) -> dict[str, str]:
        return dict(self.unlabelled)

    def opened(self) -> set[str]:
        return set(self.open_nodes)

    def list_pods(self, nodes: set[str]) -> set[str]:
        known = set(self.listed)
        self.listed |= nodes
        return self.listed if self.lists_at_once else known

    def open(self, node: str) -> None:
        self.open_nodes.add(node)


class Planning:
    """One planner, which leads or is dead; its bindings stay in progress until the test ends them."""

    def __init__(self, client: MemoryKube, pool: str, lives: Callable[[str], bool]) -> None:
        shard = Shard(pool=pool)
        self.view = LateView(client, shard)
        self.leading = False
        self.bindings: set[str] = set()
        clock = partial(next, count(0.0, HELD_S))
        self.handover = Handover(client, shard, self.view, planner=self, lives=lives, now_s=clock)

    def is_busy(self, node: str) -> bool:
        return node in self.bindings

    def leads(self) -> bool:
        return self.leading

    def has(self) -> set[str]:
        """Return the nodes that the planner plans, or for which it has a binding in progress."""
        return (self.view.open_nodes if self.leading else set()) | self.bindings


class Wandering:
    """Two planners of two pools, nodes that are moved between the pools, and watch events that arrive late.

    The operations are drawn at random with fixed weights. Property-based searches without such weights find the few
    sequences that matter only after many thousands of attempts.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.client = MemoryKube()
        for node in NODES:
            self.client.create(NODE, {"metadata": {"name": node, "labels": {POOL: "a"}}})
            self.client.create(GPU_NODE, {"metadata": {"name": node}})
        self.planners = {pool: Planning(self.client, pool, self.lives) for pool in POOLS}
        self.opened = 0

    def lives(self, lease: str) -> bool:
        """Return True if a planner holds this lease; if none does, one may begin to lead right after this answer."""
        found = any(one.leading for pool, one in self.planners.items() if Shard(pool=pool).lease == lease)
        if not found and self._random.random() < 0.3:
            self.lead(lease.rpartition("-")[2], "")
        return found

    def wander(self) -> None:
        """Do one random operation."""
        happenings = {
            self.hand_over: 60,
            self.bind: 12,
            self.write_bindings: 8,
            self.move: 16,
            self.report_usage: 4,
            self.lead: 10,
            self.lead_no_longer: 6,
        }
        (happening,) = self._random.choices(list(happenings), list(happenings.values()))
        happening(self._random.choice(POOLS), self._random.choice(NODES))

    def move(self, pool: str, node: str) -> None:
        """Change a node's pool, as an administrator does."""
        self.client.patch(NODE, node, body={"metadata": {"labels": {POOL: pool}}})

    def report_usage(self, pool: str, node: str) -> None:
        """Let the node's agent report usage, which changes the version of the GpuNode."""
        at = f"2026-01-01T00:00:{self._random.randrange(60):02}Z"
        self.client.patch(GPU_NODE, node, body={"status": {"usedAt": at}}, subresource="status")

    def lead(self, pool: str, node: str) -> None:
        """Start a new planner of the pool: it writes its lease before it lists the objects."""
        one = self.planners[pool]
        if not one.leading and not one.bindings:
            fresh = self.planners[pool] = Planning(self.client, pool, self.lives)
            fresh.leading = True
            fresh.view.hear_of_labels()
            fresh.view.hear_of_nodes()
            fresh.view.open_nodes = {
                n for n in fresh.view.pool & fresh.view.labels.keys() if not fresh.view.labels[n].taken_from
            }

    def lead_no_longer(self, pool: str, node: str) -> None:
        one = self.planners[pool]
        if not one.bindings:  # a lease ends only after the writes of its holder
            one.leading = False

    def hand_over(self, pool: str, node: str) -> None:
        one = self.planners[pool]
        if self._random.random() < 0.5:
            one.view.hear_of_nodes()
        if self._random.random() < 0.6:
            one.view.hear_of_labels()
        if self._random.random() < 0.6:
            one.view.hear_of_the_free()
        one.view.lists_at_once = self._random.random() < 0.5
        before = one.view.opened()
        one.handover.step()
        self.opened += len(one.view.opened() - before)

    def bind(self, pool: str, node: str) -> None:
        one = self.planners[pool]
        if one.leading and node in one.view.open_nodes:
            one.bindings.add(node)

    def write_bindings(self, pool: str, node: str) -> None:
        self.planners[pool].bindings.clear()

    def planned_by_two(self) -> set[str]:
        first, second = (one.has() for one in self.planners.values())
        return first & second

    def settle(self) -> None:
        """Complete all bindings, and deliver all events to every planner."""
        for pool in POOLS:
            self.planners[pool].bindings.clear()
            self.lead(pool, "")
        for _ in range(6):
            for one in self.planners.values():
                one.view.lists_at_once = True
                one.view.hear_of_all()
                one.handover.step()


@pytest.mark.parametrize("seed", [25, 31, 86, 99])  # seeds that found missing confirmations of a takeover
def test_no_node_is_planned_by_two_planners_and_each_is_planned_by_its_pool_finally(seed: int) -> None:
    world = Wandering(seed)
    for number in range(1500):
        world.wander()
        assert not world.planned_by_two(), f"after {number} happenings"
    assert world.opened > 20, "nodes were handed over all the time"
    world.settle()
    nodes = world.client.list(NODE).items
    for pool, one in world.planners.items():
        assert one.view.opened() == {n.metadata.name for n in nodes if n.metadata.labels[POOL] == pool}


def planning(client: MemoryKube, pool: str, *, living: set[str], now: list[float]) -> Planning:
    one = Planning(client, pool, lambda lease: lease in living)
    one.handover._now_s = lambda: now[0]
    one.leading = True
    return one


def labelled(client: MemoryKube, node: str) -> str:
    found = client.get(GPU_NODE, node)
    assert found is not None
    return found.metadata.labels.get(PLANNED_BY, "")


def test_node_of_a_dead_planner_is_taken_and_that_of_a_live_one_is_not() -> None:
    client, living = MemoryKube(), {"calabash-planner-b"}
    for node, holder in (("n0", "calabash-planner-b"), ("n1", "calabash-planner-gone")):
        client.create(NODE, {"metadata": {"name": node, "labels": {POOL: "a"}}})
        client.create(GPU_NODE, {"metadata": {"name": node, "labels": {PLANNED_BY: holder}}})
    one = planning(client, "a", living=living, now=[0.0])
    for _ in range(3):
        one.view.hear_of_all()
        one.handover.step()
    assert one.view.open_nodes == {"n1"}
    assert labelled(client, "n0") == "calabash-planner-b"


def test_taken_node_is_returned_if_its_planner_leads_again() -> None:
    client, living = MemoryKube(), set[str]()
    client.create(NODE, {"metadata": {"name": "n0", "labels": {POOL: "a"}}})
    client.create(GPU_NODE, {"metadata": {"name": "n0", "labels": {PLANNED_BY: "calabash-planner-b"}}})
    one = planning(client, "a", living=living, now=[0.0])
    one.view.hear_of_nodes()
    one.handover.step()
    assert labelled(client, "n0") == "calabash-planner-a"
    living.add("calabash-planner-b")
    for _ in range(2):
        one.view.hear_of_labels()
        one.handover.step()
    assert labelled(client, "n0") == "calabash-planner-b"
    assert one.view.open_nodes == set()


def test_node_without_devices_is_read_again_at_intervals() -> None:
    client, now = MemoryKube(), [0.0]
    client.create(NODE, {"metadata": {"name": "n0", "labels": {POOL: "a"}}})
    one = planning(client, "a", living=set(), now=now)
    one.view.hear_of_nodes()
    one.handover.step()
    gone = {PLANNED_BY: "calabash-planner-gone"}
    client.create(GPU_NODE, {"metadata": {"name": "n0", "labels": gone}})
    one.handover.step()
    assert labelled(client, "n0") == "calabash-planner-gone"
    now[0] = AGAIN_S
    one.handover.step()
    assert labelled(client, "n0") == "calabash-planner-a"


def test_node_that_gets_devices_is_taken_at_once() -> None:
    client = MemoryKube()
    client.create(NODE, {"metadata": {"name": "n0", "labels": {POOL: "a"}}})
    one = planning(client, "a", living=set(), now=[0.0])
    one.view.hear_of_nodes()
    one.handover.step()
    client.create(GPU_NODE, {"metadata": {"name": "n0"}})
    for _ in range(2):
        one.view.hear_of_all()
        one.handover.step()
    assert one.view.open_nodes == {"n0"}


def test_taken_node_is_returned_by_the_successor_of_the_planner_that_took_it() -> None:
    client, living = MemoryKube(), set[str]()
    client.create(NODE, {"metadata": {"name": "n0", "labels": {POOL: "a"}}})
    client.create(GPU_NODE, {"metadata": {"name": "n0", "labels": {PLANNED_BY: "calabash-planner-b"}}})
    first = planning(client, "a", living=living, now=[0.0])
    first.view.hear_of_nodes()
    first.handover.step()
    living.add("calabash-planner-b")
    second = planning(client, "a", living=living, now=[0.0])
    second.view.hear_of_all()
    second.handover.step()
    assert second.view.open_nodes == set()
    assert labelled(client, "n0") == "calabash-planner-b"


def test_released_node_that_returns_is_not_planned_from_an_old_view() -> None:
    client = MemoryKube()
    client.create(NODE, {"metadata": {"name": "n0", "labels": {POOL: "a"}}})
    client.create(GPU_NODE, {"metadata": {"name": "n0", "labels": {PLANNED_BY: "calabash-planner-a"}}})
    one = planning(client, "a", living={"calabash-planner-b"}, now=[0.0])
    one.view.hear_of_labels()
    one.handover.step()
    assert labelled(client, "n0") == "", "it is in no pool that this planner has heard of"
    client.patch(GPU_NODE, "n0", body={"metadata": {"labels": {PLANNED_BY: "calabash-planner-b"}}})
    one.view.hear_of_nodes()
    one.handover.step()
    assert one.view.opened() == set(), "its own label is what it saw before it took it off"
    one.view.hear_of_labels()
    one.handover.step()
    assert (one.view.opened(), labelled(client, "n0")) == (set(), "calabash-planner-b")
