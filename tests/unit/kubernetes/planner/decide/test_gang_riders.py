"""Members without devices start with the members of their gang that have devices, or not at all."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.kubernetes.planner.virtual import Cluster, asked

from calabash.kubernetes.gang_member import GangMember
from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.state.facts import Action, PodFacts, UngatePod
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.pod_request import GangSource
from calabash.model.errors import Reason
from calabash.model.messages import in_full
from calabash.model.request import GpuRequest

HEAD = GangMember(gang="RayCluster/r@1", size=4, owner="RayCluster/r", role="head", rank="0")


class RiderCluster(Cluster):
    """A cluster in which kube-scheduler binds pods without devices to the first node."""

    def carry_out(self, action: Action, *, fail: bool = False) -> None:
        if isinstance(action, UngatePod):
            pod = self.pods.get(action.pod.uid)
            if pod is not None:
                self.set(replace(pod, gated=False))
        else:
            super().carry_out(action, fail=fail)

    def bind(self, uid: str, node: str = "") -> str | None:
        pod = self.pods.get(uid)
        if pod is None or not pod.rides:
            return super().bind(uid, node)
        if pod.node or self.core.answers.bind(uid, "a", self.now_s).verdict is not BindVerdict.GO:
            return None
        self.set(replace(pod, node="a"))
        return "a"

    def try_one(self, uid: str, feasible: object = None) -> str | None:
        pod = self.pods[uid]
        if not pod.rides:
            return super().try_one(uid)
        return self.bind(uid) if self.core.answers.filter(uid, ["a"], "", self.now_s).anywhere else None

    def worker(self, size: int = 4) -> str:
        member = replace_member(HEAD, role="worker", size=size)
        return self.create(GpuRequest(gang=HEAD.gang, gang_size=size), member=member)

    def head(self, size: int = 4) -> str:
        return self.rider(replace_member(HEAD, size=size))

    def rider(self, member: GangMember) -> str:
        """Create a member without devices as admission leaves it."""
        uid = f"head-{next(self._numbers)}"
        facts = PodFacts(uid=uid, namespace="team", name=uid, created_at_s=self.now_s, request=None, gated=True)
        self.set(replace(facts, rides=True, member=member))
        return uid


def replace_member(member: GangMember, **changes: object) -> GangMember:
    fields = {name: getattr(member, name) for name in member.__struct_fields__}
    return GangMember(**(fields | changes))


def test_head_starts_with_its_workers() -> None:
    cluster = RiderCluster({"a": 2, "b": 2})
    head = cluster.head()
    workers = [cluster.worker() for _ in range(2)]
    cluster.settle(3)
    assert cluster.bound() == {}
    entry = cluster.core.store.entries[head]
    assert (entry.stage, entry.reason) == (Stage.ASIDE, Reason.GANG_INCOMPLETE)
    said = in_full(entry.message)
    assert "RayCluster r, role head 0: 3 of 4 members exist, 1 are missing" in said
    workers.append(cluster.worker())
    cluster.settle(3)
    assert set(cluster.bound()) == {head, *workers}


def test_head_waits_while_one_worker_has_no_room_and_starts_when_it_has() -> None:
    cluster = RiderCluster({"a": 2})
    head = cluster.head()
    workers = [cluster.worker() for _ in range(3)]
    cluster.settle(5)
    assert cluster.bound() == {}
    assert cluster.pods[head].gated
    assert "1 of them have a plan or request no devices" in in_full(cluster.core.store.entries[head].message)
    assert "RayCluster r, role worker" in in_full(cluster.core.store.entries[workers[0]].message)
    cluster.add_node("b", 1)
    cluster.settle(5)
    assert set(cluster.bound()) == {head, *workers}


def test_head_that_is_created_last_completes_the_gang() -> None:
    cluster = RiderCluster({"a": 2, "b": 2})
    workers = [cluster.worker() for _ in range(3)]
    cluster.settle(3)
    assert cluster.bound() == {}
    head = cluster.head()
    cluster.settle(3)
    assert set(cluster.bound()) == {head, *workers}


def test_head_that_is_replaced_while_workers_run_starts_at_once() -> None:
    cluster = RiderCluster({"a": 2, "b": 2})
    head = cluster.head()
    for _ in range(3):
        cluster.worker()
    cluster.settle(3)
    cluster.end(head)
    other = cluster.head()
    cluster.settle(2)
    assert other in cluster.bound()


def test_new_leader_releases_a_gang_whose_plans_were_being_bound() -> None:
    cluster = RiderCluster({"a": 2, "b": 2})
    head = cluster.head()
    workers = [cluster.worker() for _ in range(3)]
    cluster.decide()
    while cluster.todo:
        cluster.carry_out(cluster.todo.pop(0))
    plans = {uid: pod.plan for uid, pod in cluster.pods.items() if pod.plan is not None}
    assert set(plans) == set(workers)
    cluster.restarted()
    assert {uid: entry.plan for uid, entry in cluster.core.store.entries.items() if entry.plan} == plans
    cluster.settle(3)
    assert set(cluster.bound()) == {head, *workers}


def test_head_of_a_group_object_waits_for_the_group() -> None:
    cluster = RiderCluster({"a": 2})
    group = GangMember(gang="band", source=GangSource.VOLCANO, owner="Job/v", role="ps")
    head = cluster.rider(group)
    cluster.settle(2)
    assert cluster.pods[head].gated
    assert in_full(cluster.core.store.entries[head].message) == "volcano group band does not exist"
    request = replace(asked(GpuRequest(gang="band")), gang_source=GangSource.VOLCANO)
    worker = cluster.create(request)
    cluster.core.group_changed((GangSource.VOLCANO, "team", "band"), 2)
    cluster.settle(3)
    assert set(cluster.bound()) == {head, worker}


@given(
    devices=st.integers(0, 5),
    workers=st.integers(1, 5),
    heads=st.integers(1, 2),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=examples(40))
def test_all_members_run_or_none(devices: int, workers: int, heads: int, order: Random) -> None:
    cluster = RiderCluster({"a": 0, **{f"n{i}": 1 for i in range(devices)}})
    size = workers + heads
    makes = [cluster.worker] * workers + [cluster.head] * heads
    order.shuffle(makes)
    for make in makes:
        make(size)
        cluster.settle(1)
        assert not cluster.bound() or len(cluster.pods) == size
    cluster.settle(4)
    assert len(cluster.bound()) == (size if devices >= workers else 0)
    if devices < workers:
        assert all(pod.gated for pod in cluster.pods.values())
