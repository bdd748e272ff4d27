"""Controllers that recreate their pods, and a check of the scheduler's accounts, for tests of moved pods."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.kubernetes.planner.decide.core import options_with_moves
from calabash.model.request import GpuRequest

MOVES = options_with_moves(at_once=4, after_s=0.0, rest_s=0.0)
WHOLE = GpuRequest()
PAIR = GpuRequest(count=2)


class Owner:
    """Creates pods until ``replicas`` of them are not terminating, as a ReplicaSet does."""

    def __init__(self, cluster: Cluster, name: str, replicas: int, request: GpuRequest = WHOLE, **more: Any) -> None:
        self.cluster, self.name, self.replicas, self.request = cluster, name, replicas, request
        self._more: dict[str, Any] = {"owner": name, "movable": True} | more

    def pods(self) -> list[str]:
        there = self.cluster.pods.values()
        return [pod.uid for pod in there if pod.owner == self.name and not pod.leaving]

    def make(self) -> list[str]:
        """Create the missing pods; return their names."""
        missing = self.replicas - len(self.pods())
        return [self.cluster.create(self.request, **self._more) for _ in range(missing)]


def split(**more: Any) -> tuple[Cluster, Owner]:
    """Return a cluster of two nodes with two devices, on each of which a movable pod uses one."""
    options = more.pop("options", MOVES)
    cluster = Cluster({"a": 2, "b": 2}, options=options)
    owner = Owner(cluster, "web", 3, **more)
    owner.make()
    cluster.settle(3)
    nodes = Counter(cluster.bound().values())
    full = nodes.most_common(1)[0][0]
    owner.replicas = 2
    cluster.end(next(uid for uid, node in cluster.bound().items() if node == full))
    cluster.settle(3)
    assert sorted(cluster.bound().values()) == ["a", "b"]
    return cluster, owner


def balance(cluster: Cluster) -> None:
    """Check that the scheduler counts exactly what pods and reservations hold."""
    core = cluster.core
    scheduler = core.store.scheduler
    state = scheduler.scheduler.state
    arrays, registry = state.cluster, state.registry
    running = {name: one for there in registry.on_node.values() for name, one in there.items()}
    kept = {move.kept.id for move in core.relocations._moves.values() if move.kept is not None}
    assert {str(name) for name in running} <= set(core.store.entries) | kept
    assert kept <= set(running)
    assert {str(name) for name in scheduler.known} <= set(core.store.entries) | kept
    assert {name for name in scheduler.known if scheduler.holds(name)} == set(running)
    used: Counter[tuple[int, int]] = Counter()
    for one in running.values():
        for device in one.placement.devices:
            used[one.placement.node, device] += arrays.amounts(one.request.shape, one.placement.node, device)[0]
    for name in scheduler.nodes:
        row = arrays.row(name)
        for device in range(int(arrays.gpu_count[row])):
            assert arrays.gpu_free_milli[row, device] == 1000 - used[row, device], (name, device)
    charged = sum(one.charge.gpu_milli for one in running.values())
    assert sum(state.tree.used(queue).gpu_milli for queue in state.tree.form.leaves) == charged
    movable = Counter(one.placement.node for one in running.values() if one.request.movable and one.request.evictable)
    assert registry.movable_on == movable
