"""Gangs whose owner requires or prefers a level of the network are planned in one domain of it, or wait."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.kubernetes.planner.virtual import Cluster

from calabash.kubernetes.gang_member import GangMember, MemberTopology
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.state.facts import GpuNodeFacts, NodeFacts
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest

LEVELS = ("example.com/block", "example.com/rack")
RACK = MemberTopology(required="example.com/rack")


class RackCluster(Cluster):
    """A cluster whose node ``b1-r2-x`` is in block ``b1`` and rack ``r2``."""

    levels: tuple[str, ...] = LEVELS

    def restarted(self) -> Core:
        super().restarted()
        self.todo.clear()
        self.core = core = Core(
            new_id=lambda: f"plan-{next(self._numbers)}", hold_s=50.0, options=self.options, levels=self.levels
        )
        for node, gpus in self.nodes.values():
            core.node_changed(node, self.now_s)
            core.devices_changed(gpus, self.now_s)
        for pod in self.pods.values():
            core.pod_changed(pod, self.now_s)
        core.start(self.now_s)
        self.decide()
        return core

    def _node(self, name: str, gpus: int) -> tuple[NodeFacts, GpuNodeFacts]:
        node, devices = super()._node(name, gpus)
        block, rack, _ = name.split("-")
        return replace(node, labels=dict(zip(LEVELS, (block, rack), strict=True))), devices

    def members(self, count: int, topology: MemberTopology | None, *, size: int = 0, gang: str = "J/j@1") -> list[str]:
        size = size or count
        return [
            self.create(
                GpuRequest(gang=gang, gang_size=size),
                member=GangMember(gang=gang, size=size, owner="J/j", topology=topology),
            )
            for _ in range(count)
        ]

    def racks(self) -> set[str]:
        return {node.rsplit("-", 1)[0] for node in self.bound().values()}


def test_gang_is_planned_in_the_one_rack_that_holds_it() -> None:
    cluster = RackCluster({"b1-r1-x": 2, "b1-r1-y": 1, "b1-r2-x": 2, "b1-r2-y": 2, "b2-r3-x": 3})
    members = cluster.members(4, RACK)
    cluster.settle(5)
    assert set(cluster.bound()) == set(members)
    assert cluster.racks() == {"b1-r2"}


def test_gang_waits_with_the_numbers_if_no_rack_holds_it_and_starts_when_one_does() -> None:
    cluster = RackCluster({"b1-r1-x": 2, "b1-r2-x": 3})
    members = cluster.members(4, RACK)
    cluster.settle(5)
    assert cluster.bound() == {}
    entry = cluster.core.store.entries[members[0]]
    assert entry.reason is Reason.TOPOLOGY
    assert "holds 4 members; b1/r2 holds 3, b1/r1 holds 2" in in_full(entry.message)
    cluster.add_node("b1-r2-y", 1)
    cluster.settle(5)
    assert set(cluster.bound()) == set(members)
    assert cluster.racks() == {"b1-r2"}


def test_preferred_level_yields() -> None:
    cluster = RackCluster({"b1-r1-x": 2, "b1-r2-x": 2, "b2-r3-x": 3})
    cluster.members(4, MemberTopology(required="example.com/block", preferred="example.com/rack"))
    cluster.settle(5)
    assert cluster.racks() == {"b1-r1", "b1-r2"}


def test_changed_label_of_a_node_moves_it_to_another_rack() -> None:
    cluster = RackCluster({"b1-r1-x": 2, "b1-r2-x": 2})
    members = cluster.members(4, RACK)
    cluster.settle(5)
    assert cluster.bound() == {}
    node, devices = cluster.nodes["b1-r2-x"]
    moved = replace(node, labels=dict(zip(LEVELS, ("b1", "r1"), strict=True)))
    cluster.nodes["b1-r2-x"] = (moved, devices)
    cluster.core.node_changed(moved, cluster.now_s)
    cluster.settle(5)
    assert set(cluster.bound()) == set(members)


def test_replacement_of_a_member_stays_in_its_rack() -> None:
    cluster = RackCluster({"b1-r1-x": 2, "b1-r2-x": 1, "b1-r2-y": 1})
    members = cluster.members(2, RACK)
    cluster.settle(5)
    (rack,) = cluster.racks()
    cluster.end(members[0])
    cluster.members(1, RACK, size=2)
    cluster.settle(5)
    assert cluster.racks() == {rack}
    assert len(cluster.bound()) == 2


def test_planner_that_takes_over_keeps_the_rack() -> None:
    cluster = RackCluster({"b1-r1-x": 1, "b1-r1-y": 1, "b1-r2-x": 2})
    members = cluster.members(2, RACK)
    cluster.settle(5)
    (rack,) = cluster.racks()
    cluster.restarted()
    cluster.end(members[1])
    cluster.members(1, RACK, size=2)
    cluster.settle(5)
    assert cluster.racks() == {rack}


def test_planned_node_that_kube_scheduler_refuses_is_not_replaced_outside_the_rack() -> None:
    cluster = RackCluster({"b1-r1-x": 1, "b1-r1-y": 1, "b1-r2-x": 1})
    cluster.full.add("b1-r1-y")
    cluster.members(2, RACK)
    cluster.settle(8)
    assert len(cluster.racks()) <= 1
    assert "b1-r2-x" not in cluster.bound().values()


def test_level_that_the_planner_does_not_have_holds_nobody_back() -> None:
    class Flat(RackCluster):
        levels = ()

    cluster = Flat({"b1-r1-x": 2, "b1-r2-x": 2})
    members = cluster.members(4, RACK)
    cluster.settle(5)
    assert set(cluster.bound()) == set(members)
