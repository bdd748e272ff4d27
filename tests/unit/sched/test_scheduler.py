"""Tests of ``Scheduler``: events keep its state consistent, explanations are complete, and large queues are fast."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.examples import examples

from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import in_full
from calabash.sched.actions.victims import BORROW_PAUSE_S
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Bind, Defer, Evict, Move, Options, Request
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.scheduler import RECHECK_S, Scheduler
from calabash.sched.updates import relabel

MANY = 1 << 30


def node(name: str, *, gpus: int = 4, memory_mib: int = 16384) -> NodeSpec:
    return NodeSpec(
        name=name, cpu_milli=MANY, memory_mib=MANY, gpus=(GpuSpec(model="T4", memory_mib=memory_mib),) * gpus
    )


def whole(count: int) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000)


def part(milli: int, memory_mib: int = 0) -> Shape:
    return Shape(gpu_count=1, gpu_milli=milli, gpu_memory_mib=memory_mib)


class Life(RuleBasedStateMachine):
    """Random events in any order, after which the registry, the queues and the arrays must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(
            [node("n0"), node("n1", gpus=2)],
            [
                QueueSpec(name="a", deserved=Amount(3000)),
                QueueSpec(name="b", deserved=Amount(1000), limit=Amount(4000, MANY, MANY)),
                QueueSpec(name="c"),
            ],
            options=Options(half_life_s=60.0, defragment_moves_max=3, min_run_time_s=5.0, reservations=2),
        )
        self.now_s = 0.0
        self.count = 0
        self.settled = False  # True if nothing was submitted since the last cycle
        self.limit_milli = 4000.0
        self.used_milli = 0.0  # use of the limited queue at the last check

    @rule(devices=st.integers(1, 4))
    def limit(self, devices: int) -> None:
        self.limit_milli = devices * 1000.0
        specs = self.scheduler.tree.form.specs
        limits = Amount(self.limit_milli, MANY, MANY)
        self.scheduler.set_queues(replace(s, limit=limits) if s.name == "b" else s for s in specs if s.name)

    @rule(
        queue=st.sampled_from("abc"),
        shape=st.sampled_from([whole(1), whole(2), whole(4), part(300), part(500, 9000), part(0, 5000)]),
        priority=st.integers(0, 2),
        members=st.integers(1, 3),
        missing=st.booleans(),
        run_time_s=st.sampled_from([None, 10.0, 100.0]),
    )
    def submit(  # noqa: PLR0917  hypothesis passes by keyword
        self, queue: str, shape: Shape, priority: int, members: int, missing: bool, run_time_s: float | None
    ) -> None:
        self.count += 1
        self.settled = False
        for m in range(members):
            self.scheduler.submit(
                Request(
                    id=f"{self.count}.{m}", shape=shape, queue=queue, priority=priority, run_time_s=run_time_s,
                    submitted_at_s=self.now_s, gang=str(self.count) if members > 1 else "",
                    min_member=members + missing if members > 1 else 1,
                )
            )  # fmt: skip

    @rule(step_s=st.sampled_from([0.0, 1.0, 30.0]))
    def cycle(self, step_s: float) -> None:
        self.now_s += step_s
        decisions = self.scheduler.cycle(self.now_s)
        bound = [d.id for d in decisions if isinstance(d, Bind)]
        assert len(bound) == len(set(bound))
        assert not {d.id for d in decisions if isinstance(d, Evict | Move)} & set(bound)
        for d in decisions:
            if isinstance(d, Evict):
                assert d.by in bound
            if isinstance(d, Defer):
                assert d.explanation.summary
                assert d.id in self.scheduler.registry.gang_of(d.id).waiting
        self.settled = True

    def known(self) -> list[str]:
        return sorted(i for g in self.scheduler.registry.gangs.values() for i in (*g.waiting, *g.running))

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.scheduler.finished(data.draw(st.sampled_from(self.known())))

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        self.scheduler.unbind(data.draw(st.sampled_from(self.known())))

    @rule(name=st.sampled_from(["n0", "n1"]), on=st.booleans())
    def cordon(self, name: str, on: bool) -> None:
        self.scheduler.cordon(name, schedulable=not on)

    @invariant()
    def arrays_hold_exactly_what_runs(self) -> None:
        cluster = self.scheduler.cluster
        milli = cluster.gpu_free_milli.copy()
        mib = cluster.gpu_free_mib.copy()
        for gang in self.scheduler.registry.gangs.values():
            for running in gang.running.values():
                for device in running.placement.devices:
                    taken = cluster.amounts(running.request.shape, running.placement.node, device)
                    milli[running.placement.node, device] += taken[0]
                    mib[running.placement.node, device] += taken[1]
        assert (cluster.gpu_free_milli >= 0).all()
        assert (cluster.gpu_free_mib >= 0).all()
        for row in range(cluster.node_count):
            count = int(cluster.gpu_count[row])
            assert (milli[row, :count] == 1000).all()
            assert (mib[row, :count] == cluster.gpu_mib[row, :count]).all()

    @invariant()
    def queues_are_charged_exactly_what_runs_and_waits(self) -> None:
        for queue in self.scheduler.tree.form.leaves:
            gangs = [g for g in self.scheduler.registry.gangs.values() if g.queue == queue]
            running = sum(r.charge.gpu_milli for g in gangs for r in g.running.values())
            waiting = sum(
                self.scheduler.state.charges.charge(a.shape).gpu_milli for g in gangs for a in g.waiting.values()
            )
            assert self.scheduler.tree.used(queue).gpu_milli == running
            assert self.scheduler.tree.waiting(queue).gpu_milli == waiting
        used_milli = self.scheduler.tree.used("b").gpu_milli
        assert used_milli <= max(self.limit_milli, self.used_milli)
        self.used_milli = used_milli

    @invariant()
    def a_cycle_that_names_no_time_is_followed_by_none_that_acts(self) -> None:
        wake_at_s = self.scheduler.wake_at_s()
        if self.settled and (wake_at_s is None or wake_at_s > self.now_s):
            decisions = self.scheduler.cycle(self.now_s)
            assert [d for d in decisions if not isinstance(d, Defer)] == []


Life.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestLife = Life.TestCase


def test_surplus_member_is_attempted_after_the_core_of_its_gang() -> None:
    scheduler = Scheduler([node("n")], [QueueSpec(name="q")])
    scheduler.cycle(0.0)
    for name, priority in (("m1", 0), ("m2", 0), ("m3", 1), ("m4", 1)):
        scheduler.submit(Request(id=name, queue="q", gang="g", min_member=2, priority=priority, shape=whole(1)))
    first = scheduler.decide("m1", 1.0)
    assert [d.id for d in first if isinstance(d, Bind)] == ["m3", "m4", "m1"]
    assert [d.id for d in scheduler.decide("m2", 1.0) if isinstance(d, Bind)] == ["m2"]
    assert scheduler.wake_at_s() is None


def test_surplus_member_of_a_gang_that_does_not_fit_gets_that_explanation() -> None:
    scheduler = Scheduler([node("n", gpus=1)], [QueueSpec(name="q")])
    scheduler.cycle(0.0)
    for name, priority in (("m1", 0), ("m2", 1), ("m3", 1)):
        scheduler.submit(Request(id=name, queue="q", gang="g", min_member=2, priority=priority, shape=whole(1)))
    told = {d.id: d for d in scheduler.decide("m1", 1.0) if isinstance(d, Defer)}
    assert set(told) == {"m1", "m2", "m3"}
    assert "must start its first" in in_full(told["m1"].explanation.summary)
    assert all(r.request_ids == ("m2", "m3") for r in scheduler.state.reservations)


def test_cycle_does_not_evict_what_it_started_but_makes_another_cycle_due() -> None:
    queues = [QueueSpec(name=name, deserved=Amount(1000)) for name in "ab"]
    scheduler = Scheduler([node("n", gpus=2)], queues, policy="bestfit", options=Options(reservations=0))
    for name, queue, count, priority in (("big", "a", 4, 1), ("a1", "a", 1, 0), ("b1", "b", 1, 1), ("b2", "b", 1, 0)):
        scheduler.submit(Request(id=name, queue=queue, priority=priority, shape=whole(count)))
    assert [d.id for d in scheduler.cycle(0.0) if not isinstance(d, Defer)] == ["b1", "b2"]
    assert scheduler.wake_at_s() == 0.0
    assert [(type(d), d.id) for d in scheduler.cycle(0.0) if not isinstance(d, Defer)] == [(Evict, "b2"), (Bind, "a1")]
    assert [d for d in scheduler.cycle(0.0) if not isinstance(d, Defer)] == []
    assert scheduler.wake_at_s() == BORROW_PAUSE_S


def test_start_that_puts_a_reserved_gang_over_its_queue_limit_makes_another_cycle_due() -> None:
    queues = [QueueSpec(name="a", limit=Amount(4000)), QueueSpec(name="b")]
    scheduler = Scheduler([node("n", gpus=4)], queues, options=Options(reservations=1))
    scheduler.submit(Request(id="runs", queue="b", shape=whole(2), run_time_s=100.0))
    scheduler.cycle(0.0)
    for name, count, run_time_s, at_s in (
        ("promised", 4, 100.0, 1.0),
        ("short", 1, 50.0, 2.0),
        ("long", 1, 1000.0, 3.0),
    ):
        scheduler.submit(Request(id=name, queue="a", shape=whole(count), run_time_s=run_time_s, submitted_at_s=at_s))
    told = {d.id: d for d in scheduler.cycle(3.0)}
    assert isinstance(told["short"], Bind)
    assert isinstance(told["long"], Defer)
    assert told["long"].reason is Reason.RESERVED
    assert scheduler.wake_at_s() == 3.0
    assert [d.id for d in scheduler.cycle(3.0) if isinstance(d, Bind)] == ["long"]
    assert scheduler.wake_at_s() == 3.0 + RECHECK_S
    assert scheduler.cycle(3.0 + RECHECK_S) == ()
    assert scheduler.wake_at_s() is None


def world_with_one_that_never_fits() -> Scheduler:
    scheduler = Scheduler([node("n", gpus=4)], [QueueSpec(name="q")], options=Options(reservations=0))
    scheduler.submit(Request(id="big", queue="q", shape=whole(8)))
    for at_s in (0.0, 1.0):
        scheduler.cycle(at_s)
    assert scheduler.wake_at_s() is None
    return scheduler


@pytest.mark.parametrize("by", ["cycle", "decide"])
def test_another_cycle_is_due_at_once_after_a_start_if_there_was_none_for_a_second(by: str) -> None:
    scheduler = world_with_one_that_never_fits()
    scheduler.submit(Request(id="x", queue="q", shape=whole(1)))
    started = scheduler.cycle(2.5) if by == "cycle" else scheduler.decide("x", 2.5)
    assert [d.id for d in started if isinstance(d, Bind)] == ["x"]
    assert scheduler.wake_at_s() == 2.5
    scheduler.cycle(2.5)
    assert scheduler.wake_at_s() is None


def test_many_starts_make_one_more_cycle_due_each_second() -> None:
    scheduler = world_with_one_that_never_fits()
    due_s = []
    for number, at_s in enumerate((2.5, 2.6, 3.4)):
        scheduler.submit(Request(id=f"x{number}", queue="q", shape=whole(1)))
        scheduler.decide(f"x{number}", at_s)
        due_s.append(scheduler.wake_at_s())
        if due_s[-1] == at_s:
            scheduler.cycle(at_s)
    assert due_s == [2.5, 3.5, 3.5]


def test_start_makes_no_other_cycle_due_if_nothing_waits() -> None:
    scheduler = Scheduler([node("n", gpus=4)], [QueueSpec(name="q")])
    scheduler.submit(Request(id="x", queue="q", shape=whole(1)))
    scheduler.cycle(0.0)
    assert scheduler.wake_at_s() is None


def test_cycle_is_due_each_second_with_random_policies() -> None:
    scheduler = Scheduler([node("n", gpus=1)], [QueueSpec(name="q")], policy="random", options=Options(reservations=0))
    scheduler.submit(Request(id="big", queue="q", shape=whole(8)))
    found = []
    for at_s in (1.0, 2.0, 3.5):
        scheduler.cycle(at_s)
        found.append(scheduler.wake_at_s())
    assert found == [2.0, 3.0, 4.5]


def test_failed_adoption_changes_nothing() -> None:
    scheduler = Scheduler([node("n0", gpus=1)], [QueueSpec(name="a")])
    scheduler.adopt(Request(id="x", queue="a", shape=whole(1)), started_at_s=0.0)
    with pytest.raises(CalabashError):
        scheduler.adopt(
            Request(id="y", queue="a", shape=whole(1)), placement=NodePlacement(node=0, devices=(0,)), started_at_s=0.0
        )
    assert "y" not in scheduler.registry
    assert scheduler.tree.used("a") == Amount(1000, 0, 0)
    assert scheduler.tree.waiting("a") == Amount()


def test_request_id_in_use_is_refused() -> None:
    scheduler = Scheduler([node("n0")], [QueueSpec(name="a")])
    scheduler.submit(Request(id="x", queue="a", shape=whole(1)))
    with pytest.raises(CalabashError) as caught:
        scheduler.submit(Request(id="x", queue="a", shape=whole(1)))
    assert caught.value.reason is Reason.CONFLICT
    scheduler.finished("x")
    scheduler.submit(Request(id="x", queue="a", shape=whole(1)))


def test_running_and_unknown_requests_are_not_explained() -> None:
    scheduler = Scheduler([node("n0")], [QueueSpec(name="a")])
    scheduler.submit(Request(id="x", queue="a", shape=whole(1)))
    scheduler.cycle(0.0)
    with pytest.raises(CalabashError, match="is running"):
        scheduler.explain("x", 0.0)
    with pytest.raises(CalabashError, match="does not exist"):
        scheduler.explain("z", 0.0)


def test_failed_bind_waits_again_with_its_former_position() -> None:
    scheduler = Scheduler([node("n0", gpus=1)], [QueueSpec(name="a")])
    scheduler.submit(Request(id="x", queue="a", shape=whole(1), submitted_at_s=1.0))
    scheduler.submit(Request(id="y", queue="a", shape=whole(1), submitted_at_s=2.0))
    assert [d.id for d in scheduler.cycle(3.0) if isinstance(d, Bind)] == ["x"]
    scheduler.unbind("x")
    assert [d.id for d in scheduler.cycle(4.0) if isinstance(d, Bind)] == ["x"]


def test_removed_node_does_not_count_as_capacity() -> None:
    scheduler = Scheduler([node("n0"), node("n1")], [QueueSpec(name="a")])
    assert scheduler.tree.capacity.gpu_milli == 8000
    scheduler.remove_node("n1")
    assert scheduler.tree.capacity.gpu_milli == 4000
    with pytest.raises(CalabashError, match="'n1' does not exist in the cluster"):
        scheduler.cordon("n1", schedulable=True)


def test_added_node_takes_the_row_of_a_removed_node_of_any_size() -> None:
    scheduler = Scheduler([node("n0"), node("n1")], [QueueSpec(name="a")], gpus_per_node_max=8)
    scheduler.submit(Request(id="x", queue="a", shape=whole(4), submitted_at_s=0.0))
    gone = next(d.node for d in scheduler.cycle(0.0) if isinstance(d, Bind))
    assert scheduler.remove_node(gone) == ("x",)
    other = next(d.node for d in scheduler.cycle(0.5) if isinstance(d, Bind))
    rows = scheduler.cluster.node_count
    for _ in range(3):
        scheduler.add_node(node(gone, gpus=6))
        scheduler.remove_node(gone)
    scheduler.add_node(node(gone, gpus=6))
    assert scheduler.cluster.node_count == rows
    assert scheduler.tree.capacity.gpu_milli == 10_000
    scheduler.submit(Request(id="y", queue="a", shape=whole(6), submitted_at_s=1.0))
    started = {d.id: d.node for d in scheduler.cycle(1.0) if isinstance(d, Bind)}
    assert started == {"y": gone}
    assert other != gone


def test_explanation_does_not_count_removed_nodes() -> None:
    scheduler = Scheduler([node("n0"), node("n1")], [QueueSpec(name="a")])
    scheduler.remove_node("n1")
    scheduler.submit(Request(id="x", queue="a", shape=whole(5)))
    assert in_full(scheduler.explain("x", 0.0).summary).startswith("0/1 nodes are available")


def test_labels_and_taints_of_a_node_can_be_changed_in_place() -> None:
    scheduler = Scheduler([node("n0")], [QueueSpec(name="a")])
    scheduler.submit(Request(id="x", queue="a", shape=replace(whole(1), selector=("pool=fast",))))
    assert not [d for d in scheduler.cycle(0.0) if isinstance(d, Bind)]
    relabel(scheduler, "n0", labels={"pool": "fast"}, taints=("k=v:NoSchedule",))
    assert not [d for d in scheduler.cycle(1.0) if isinstance(d, Bind)]
    relabel(scheduler, "n0", labels={"pool": "fast"}, taints=())
    assert [d.id for d in scheduler.cycle(2.0) if isinstance(d, Bind)] == ["x"]


def _cpu_s_of_512(**gang: Any) -> float:
    """Return the processor time of the cycle that places 512 requests on as many nodes."""
    scheduler = Scheduler([node(f"n{i}", gpus=8) for i in range(512)], [QueueSpec(name="a")])
    for i in range(512):
        scheduler.submit(Request(id=f"g{i}", queue="a", shape=whole(8), **gang))
    began = time.process_time()
    decisions = scheduler.cycle(0.0)
    took_s = time.process_time() - began
    assert len([d for d in decisions if isinstance(d, Bind)]) == 512
    return took_s


def test_gang_of_512_costs_no_more_than_three_times_512_single_requests() -> None:
    # A gang costs 0.8 of the single requests. The minimum of three runs excludes effects of other processes on the caches.
    single_s = min(_cpu_s_of_512() for _ in range(3))
    assert min(_cpu_s_of_512(gang="g", min_member=512) for _ in range(3)) < 3 * single_s


def test_twenty_thousand_hopeless_requests_are_searched_once_per_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler([node(f"n{i}") for i in range(100)], [QueueSpec(name="a"), QueueSpec(name="b")])
    for row in range(100):
        request = Request(id=f"r{row}", queue="a", shape=whole(4), evictable=False)
        scheduler.adopt(request, placement=NodePlacement(node=row, devices=(0, 1, 2, 3)), started_at_s=0.0)
    for i in range(20_000):
        scheduler.submit(Request(id=f"p{i}", queue="ab"[i % 2], shape=whole(1 + i % 4)))
    engine = scheduler.placer.engine
    best, searched = engine.best, Counter[Shape]()

    def counted(shape: Shape) -> NodePlacement | None:
        searched[shape] += 1
        return best(shape)

    monkeypatch.setattr(engine, "best", counted)
    reported = scheduler.cycle(1.0)
    assert len(reported) == 20_000
    searched.clear()
    scheduler._memory.clear()
    assert scheduler.cycle(2.0) == ()
    assert searched <= Counter({whole(count): 1 for count in (1, 2, 3, 4)})
