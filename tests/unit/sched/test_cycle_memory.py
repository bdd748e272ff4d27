"""Tests of skipped cycles: decisions equal those without skipping, and each change and each time rule ends the skipping."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.model.mig import MigInstance
from calabash.sched import updates
from calabash.sched.actions.victims import BORROW_PAUSE_S
from calabash.sched.amounts import Amount
from calabash.sched.cluster.shape import NodePlacement, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.cycle import Cycle
from calabash.sched.cycle_memory import AGE_MAX_S, CycleMemory
from calabash.sched.decisions import Decision, Options, Request
from calabash.sched.queues.registry import GangRegistry
from calabash.sched.queues.reservation import Reservation
from calabash.sched.queues.spec import UNLIMITED, QueueSpec
from calabash.sched.scheduler import Scheduler
from calabash.sched.state import SchedulerState

Step = Callable[[Scheduler, float], tuple[Decision, ...] | None]
Act = Callable[[Scheduler], object]


# ---- random histories -----------------------------------------------------------------------------------------------


class NoMemory(CycleMemory):
    def holds(self) -> bool:
        return False


def made(rng: random.Random, memory: type[CycleMemory]) -> Scheduler:
    nodes = [
        NodeSpec(name=f"n{i}", cpu_milli=1 << 30, memory_mib=1 << 30, gpus=(GpuSpec(),) * rng.choice((1, 2, 4)))
        for i in range(rng.randint(1, 3))
    ]
    total = sum(len(node.gpus) for node in nodes)
    limit = UNLIMITED._replace(gpu_milli=rng.randint(1, total) * 1000)
    queues = [
        QueueSpec(name="a", deserved=Amount(rng.randint(0, total) * 1000)),
        QueueSpec(name="b", limit=limit if rng.random() < 0.3 else UNLIMITED),
        QueueSpec(name="c", over_quota_weight=2.0),
    ]
    options = Options(
        half_life_s=rng.choice((0.0, 0.0, 100.0, 50_000.0)),
        min_run_time_s=rng.choice((0.0, 20.0)),
        reclaim_fair_share=rng.random() < 0.7,
        reservations=rng.choice((0, 0, 1, 2)),
        reservation_hold_s=rng.choice((15.0, 600.0)),
        reservation_pause_s=25.0,
        default_run_time_s=rng.choice((70.0, 86_400.0)),
        defragment_moves_max=rng.choice((0, 2)),
        defragment_wait_s=rng.choice((0.0, 30.0)),
        defragment_rest_s=rng.choice((0.0, 30.0)),
    )
    scheduler = Scheduler(nodes, queues, options=options)
    scheduler._memory = memory(scheduler.state, age_max_s=math.inf)
    return scheduler


def step_of(rng: random.Random, number: int) -> Step:
    """Draw one step, which chooses its objects by numbers, so that it does the same in equal schedulers."""
    pick = rng.random()
    others = ("end", "cordon", "evictable", "movable", "decide")
    what = "submit" if number % 15 < 4 else rng.choice(others) if number % 15 == 4 else "nothing"
    if number % 15 == 10:
        what = rng.choice(("nothing", "movable", "decide"))
    on = rng.random() < 0.5
    queue, priority, members = rng.choice("abc"), rng.choice((0, 0, 1)), rng.choice((1, 1, 1, 2, 3))
    shape = rng.choice(
        [
            *(Shape(gpu_count=n, gpu_milli=1000) for n in (1, 1, 2, 4)),
            *(Shape(gpu_count=1, gpu_milli=m) for m in (300, 500)),
        ]
    )
    run_time_s = rng.choice((None, 10.0, 60.0, 300.0))

    def chosen(names: list[str]) -> str:
        return names[int(pick * len(names))]

    def step(scheduler: Scheduler, now_s: float) -> tuple[Decision, ...] | None:
        gangs = scheduler.registry.gangs.values()
        running = sorted(name for gang in gangs for name in gang.running)
        waiting = sorted(name for gang in gangs for name in gang.waiting)
        if what == "submit":
            for member in range(members):
                gang = f"g{number}" if members > 1 else ""
                scheduler.submit(
                    Request(
                        id=f"r{number}.{member}", queue=queue, shape=shape, priority=priority, run_time_s=run_time_s,
                        gang=gang, min_member=members, submitted_at_s=now_s, owner=f"o{number % 2}", evictable=on,
                    )
                )  # fmt: skip
        elif what == "end" and running + waiting:
            scheduler.finished(chosen(running + waiting))
        elif what == "cordon":
            scheduler.cordon(chosen(sorted(scheduler.specs)), schedulable=on)
        elif what == "evictable" and running:
            updates.set_evictable(scheduler, chosen(running), evictable=on)
        elif what == "movable" and running:
            name = chosen(running)
            updates.set_movable(scheduler, name, shape=scheduler.registry.request(name).shape if on else None)
        elif what == "decide" and waiting:
            return scheduler.decide(chosen(waiting), now_s)
        return None

    return step


@settings(max_examples=examples(320))
@given(seed=st.integers(0, 1 << 40))
def test_random_histories_are_decided_as_without_skipped_cycles(seed: int) -> None:
    pair = made(random.Random(seed), CycleMemory), made(random.Random(seed), NoMemory)
    rng, now_s = random.Random(-seed), 0.0
    for number in range(60):
        now_s += rng.choice((0.0, 1.0, 5.0, 7.0, 40.0, 200.0) if number % 15 > 4 else (0.0, 1.0))
        step = step_of(rng, number)
        found = []
        for scheduler in pair:
            first, state = step(scheduler, now_s), scheduler.state
            decided = scheduler.cycle(now_s)
            found.append((first, decided, state.reservations, state.passed, scheduler.wake_at_s()))
        assert found[0] == found[1], (seed, number)


# ---- directed: worlds -----------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets one entry for each cycle that is not skipped."""
    found, run = list[int](), Cycle.run

    def counted(cycle: Cycle) -> tuple[Decision, ...]:
        found.append(1)
        return run(cycle)

    monkeypatch.setattr(Cycle, "run", counted)
    return found


def node(name: str, gpus: int, **more: object) -> NodeSpec:
    return NodeSpec(name=name, cpu_milli=64_000, memory_mib=1 << 20, gpus=(GpuSpec(),) * gpus, **more)  # type: ignore[arg-type]


def ask(name: str, gpus: int = 1, milli: int = 1000, **more: object) -> Request:
    values: dict[str, object] = {"queue": "q", "shape": Shape(gpu_count=gpus, gpu_milli=milli), **more}
    return Request(id=name, **values)  # type: ignore[arg-type]


def made_of(*nodes: NodeSpec, queue: QueueSpec | None = None, **options: object) -> Scheduler:
    values = Options(**{"reservations": 0, **options})  # type: ignore[arg-type]
    return Scheduler(nodes, [queue or QueueSpec(name="q"), QueueSpec(name="other")], options=values)


def half_full(**options: Any) -> Scheduler:
    """Return a scheduler of one node of 2 devices, one of them in use, with a waiting request for both."""
    scheduler = made_of(node("a", 2), **options)
    scheduler.adopt(ask("r", evictable=False), started_at_s=0.0)
    scheduler.submit(ask("x", 2))
    return scheduler


def shut(change: Act) -> Scheduler:
    """Return a scheduler of an idle node that a change has made unusable, with a waiting request."""
    scheduler = made_of(node("a", 1))
    change(scheduler)
    scheduler.submit(ask("x"))
    return scheduler


def scattered(**options: Any) -> Scheduler:
    """Return a scheduler of two nodes of 2 devices, half a device in use on each, with a waiting request for 2 devices."""
    scheduler = made_of(node("a", 2), node("b", 2), **{"defragment_moves_max": 1, **options})
    for name in ("a", "b"):
        scheduler.adopt(ask(f"r{name}", milli=500), node=name, started_at_s=0.0)
    scheduler.submit(ask("x", 2))
    return scheduler


def limited() -> Scheduler:
    scheduler = made_of(node("a", 1), queue=QueueSpec(name="q", limit=UNLIMITED._replace(gpu_milli=0)))
    scheduler.submit(ask("x"))
    return scheduler


def gang(*sizes: int) -> Scheduler:
    """Return a scheduler of 2 idle devices with the members of an incomplete gang, which give different sizes of the gang."""
    scheduler = made_of(node("a", 2))
    for k, size in enumerate(sizes):
        scheduler.submit(ask(f"g{k}", gang="g", min_member=size))
    return scheduler


def full_with_room_to_come() -> Scheduler:
    """Return a scheduler without nodes, with a waiting request for 2 devices."""
    scheduler = made_of(node("a", 1), node("b", 2))
    scheduler.remove_node("b")
    scheduler.submit(ask("x", 2))
    return scheduler


PLACE, PAIR = NodePlacement(node=0, devices=(0,)), NodePlacement(node=0, devices=(0, 1))
ONE = Shape(gpu_count=1, gpu_milli=1000)
STAYS = MigInstance(profile="1g.10gb", start=0, fixed=True)


def forbid_moves(scheduler: Scheduler) -> None:
    updates.set_movable(scheduler, "ra")
    updates.set_movable(scheduler, "rb")


def with_change(scheduler: Scheduler, change: Act) -> Scheduler:
    change(scheduler)
    return scheduler


def begin(scheduler: Scheduler) -> None:
    request = scheduler.registry.request("x")
    scheduler.cluster.place(request.shape, PLACE)
    scheduler.state.start(request, PLACE, 2.0)


def put(name: str, value: object) -> Act:
    return lambda scheduler: setattr(scheduler.state, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A change of a settled scheduler; ``decided`` are the classes of the decisions of the next cycle."""

    world: Callable[[], Scheduler]
    change: Act
    decided: str = ""


CASES = {
    "Scheduler.submit": Case(world=half_full, change=lambda s: s.submit(ask("y")), decided="Bind"),
    "Scheduler.finished": Case(world=half_full, change=lambda s: s.finished("r"), decided="Bind"),
    "Scheduler.finished waiting": Case(world=lambda: gang(2, 2, 4), change=lambda s: s.finished("g2"), decided="Bind"),
    "Scheduler.adopt": Case(
        world=lambda: gang(2), change=lambda s: s.adopt(ask("g1", gang="g"), started_at_s=2.0), decided="Bind"
    ),
    "Scheduler.unbind": Case(world=half_full, change=lambda s: s.unbind("r"), decided="Bind"),
    "Scheduler.add_node": Case(world=full_with_room_to_come, change=lambda s: s.add_node(node("b", 2)), decided="Bind"),
    "Scheduler.remove_node": Case(world=half_full, change=lambda s: s.remove_node("a"), decided="Defer"),
    "Scheduler.cordon": Case(
        world=lambda: shut(lambda s: s.cordon("a")), change=lambda s: s.cordon("a", schedulable=True), decided="Bind"
    ),
    "Scheduler.set_health": Case(
        world=lambda: shut(lambda s: s.set_health("a", 0, healthy=False)),
        change=lambda s: s.set_health("a", 0, healthy=True),
        decided="Bind",
    ),
    "Scheduler.set_levels": Case(world=half_full, change=lambda s: s.set_levels(["rack"], {"a": ["r1"]})),
    "Scheduler.set_queues": Case(
        world=limited,
        change=lambda s: s.set_queues([QueueSpec(name="q"), QueueSpec(name="other")]),
        decided="Bind",
    ),
    "Scheduler.decide": Case(world=half_full, change=lambda s: s.decide("x", 2.0)),
    "relabel": Case(
        world=lambda: shut(lambda s: updates.relabel(s, "a", labels={}, taints=("k=v:NoSchedule",))),
        change=lambda s: updates.relabel(s, "a", labels={}, taints=()),
        decided="Bind",
    ),
    "set_mig_instances": Case(
        world=lambda: shut(lambda s: updates.set_mig_instances(s, "a", 0, [STAYS])),
        change=lambda s: updates.set_mig_instances(s, "a", 0, []),
        decided="Bind",
    ),
    "set_mig_coming": Case(world=half_full, change=lambda s: updates.set_mig_coming(s, ["1g.10gb"])),
    "set_evictable": Case(
        world=lambda: with_change(half_full(), lambda s: s.submit(ask("y", 2, priority=1))),
        change=lambda s: updates.set_evictable(s, "r", evictable=True),
        decided="Evict Bind Defer",
    ),
    "set_movable": Case(
        world=lambda: with_change(scattered(), forbid_moves),
        change=lambda s: updates.set_movable(s, "ra", shape=Shape(gpu_count=1, gpu_milli=500)),
        decided="Move Bind",
    ),
    "SchedulerState.moves_left": Case(
        world=lambda: with_change(scattered(), put("moves_left", 0)),
        change=put("moves_left", 1),
        decided="Move Bind",
    ),
    "SchedulerState.unsettled": Case(world=half_full, change=put("unsettled", True)),
    "SchedulerState.occupy": Case(
        world=half_full, change=lambda s: s.state.occupy(ONE, NodePlacement(node=0, devices=(1,)))
    ),
    "SchedulerState.vacate": Case(
        world=lambda: shut(lambda s: s.state.occupy(ONE, PLACE)),
        change=lambda s: s.state.vacate(ONE, PLACE),
        decided="Bind",
    ),
    "Scheduler.restore_past_use": Case(world=half_full, change=lambda s: s.restore_past_use({"q": 9.0}, 1.0)),
    "SchedulerState.freed": Case(world=half_full, change=lambda s: s.state.freed()),
    "SchedulerState.changed": Case(world=half_full, change=lambda s: s.state.changed()),
    "SchedulerState.count_capacity": Case(world=half_full, change=lambda s: s.state.count_capacity([0])),
    "SchedulerState.enqueue": Case(world=half_full, change=lambda s: s.state.enqueue(ask("y")), decided="Bind"),
    "SchedulerState.start": Case(world=lambda: shut(lambda s: s.cordon("a")), change=begin),
    "SchedulerState.stop": Case(world=half_full, change=lambda s: s.state.stop("r"), decided="Bind"),
    "SchedulerState.move": Case(
        world=half_full, change=lambda s: s.state.move(s.registry.gang_of("r").running["r"], PLACE)
    ),
    "SchedulerState.remove": Case(world=half_full, change=lambda s: s.state.remove("r"), decided="Bind"),
}
# Methods that change no input of a cycle, or are tested elsewhere.
READERS = {"cycle", "advance", "count_use", "wake_at_s", "explain", "snapshot", "need"}


def settled(scheduler: Scheduler, runs: list[int], at_s: float) -> None:
    """Run cycles until one is skipped."""
    for k in range(3):
        scheduler.cycle(at_s + k / 4)
    before = len(runs)
    assert scheduler.cycle(at_s + 0.75) == ()
    assert len(runs) == before, "the cycle over an equal state was not skipped"


def methods(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")} - READERS


def test_every_method_that_changes_the_scheduler_has_a_case() -> None:
    functions = {
        name
        for name, function in inspect.getmembers(updates, inspect.isfunction)
        if function.__module__ == updates.__name__ and not name.startswith("_")
    }
    wanted = {f"{of.__name__}.{name}" for of in (Scheduler, SchedulerState) for name in methods(of)} | functions
    assert wanted - CASES.keys() == set()


@pytest.mark.parametrize("name", CASES)
def test_change_after_a_skipped_cycle_is_acted_on_in_the_next(name: str, runs: list[int]) -> None:
    case = CASES[name]
    scheduler = case.world()
    settled(scheduler, runs, 1.0)
    case.change(scheduler)
    before = len(runs)
    decided = [type(decision).__name__ for decision in scheduler.cycle(2.0)]
    assert len(runs) == before + 1
    assert " ".join(dict.fromkeys(decided)) == case.decided


@pytest.mark.parametrize("name", sorted(methods(GangRegistry) - {"gang_of", "request", "running", "take_changed"}))
def test_every_change_of_the_registry_changes_its_version(name: str) -> None:
    scheduler = half_full()
    registry, running = scheduler.registry, scheduler.registry.gang_of("r").running["r"]
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: registry.add(ask("y")),
        "start": lambda: registry.start(running),
        "stop": lambda: registry.stop("r"),
        "move": lambda: registry.move(running),
        "remove": lambda: registry.remove("r"),
    }
    if name == "start":
        registry.stop("r")
    before = registry.version
    calls[name]()
    assert registry.version == before + 1


# ---- directed: time -------------------------------------------------------------------------------------------------


def evicted() -> Scheduler:
    """Return a scheduler in which x was evicted for y at 1 s, and could evict z after the pause."""
    scheduler = made_of(node("a", 2))
    scheduler.adopt(ask("z", evictable=False), started_at_s=0.0)
    scheduler.adopt(ask("x", priority=1), started_at_s=0.0)
    scheduler.submit(ask("y", priority=2))
    assert "x" in {decision.id for decision in scheduler.cycle(1.0)}
    updates.set_evictable(scheduler, "z", evictable=True)
    return scheduler


def preempting() -> Scheduler:
    scheduler = made_of(node("a", 1), min_run_time_s=20.0, defragment_rest_s=50.0)
    scheduler.adopt(ask("r"), started_at_s=1.0)
    scheduler.submit(ask("x", priority=1))
    return scheduler


def lapsing() -> Scheduler:
    """Return a scheduler in which an idle device is held for x, and y can use it once the reservation expires."""
    scheduler = made_of(node("a", 2), reservations=1, reservation_hold_s=20.0, reservation_pause_s=20.0)
    scheduler.adopt(ask("r", evictable=False), started_at_s=0.0)
    scheduler.submit(ask("x", 2, submitted_at_s=0.5))
    scheduler.submit(ask("y", submitted_at_s=0.6))
    scheduler.cycle(1.0)
    return scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that lets a cycle at ``at_s`` make a decision that a cycle at ``from_s`` does not make."""

    world: Callable[[], Scheduler]
    from_s: float
    at_s: float
    decided: str


RULES = {
    "min_run_time_s, eviction": Rule(world=preempting, from_s=2.0, at_s=21.0, decided="Evict Bind Defer"),
    "min_run_time_s, move": Rule(
        world=lambda: scattered(min_run_time_s=20.0), from_s=1.0, at_s=20.0, decided="Move Bind"
    ),
    "defragment_rest_s": Rule(
        world=lambda: scattered(defragment_rest_s=20.0), from_s=1.0, at_s=20.0, decided="Move Bind"
    ),
    "defragment_wait_s": Rule(
        world=lambda: scattered(defragment_wait_s=20.0), from_s=1.0, at_s=20.0, decided="Move Bind"
    ),
    "BORROW_PAUSE_S": Rule(world=evicted, from_s=2.0, at_s=1.0 + BORROW_PAUSE_S, decided="Evict Bind Defer"),
    "reservation_hold_s": Rule(world=lapsing, from_s=2.0, at_s=21.0, decided="Bind"),
}


@pytest.mark.parametrize("name", RULES)
def test_decision_that_depends_on_time_is_made_at_that_time(name: str, runs: list[int]) -> None:
    rule = RULES[name]
    scheduler = rule.world()
    scheduler._memory = CycleMemory(scheduler.state, age_max_s=math.inf)
    settled(scheduler, runs, rule.from_s)
    assert scheduler.wake_at_s() == rule.at_s
    before = len(runs)
    assert scheduler.cycle(rule.at_s - 0.01) == ()
    assert len(runs) == before
    decided = [type(decision).__name__ for decision in scheduler.cycle(rule.at_s)]
    assert " ".join(dict.fromkeys(decided)) == rule.decided


@pytest.mark.parametrize("rule", ["start", "lapse", "pause"])
def test_cycle_that_is_due_is_not_skipped(rule: str, runs: list[int]) -> None:
    scheduler = half_full(reservation_hold_s=10.0)
    settled(scheduler, runs, 1.0)
    state = scheduler.state
    start_s = 20.0 if rule == "start" else 99.0
    unknown_since_s = 10.0 if rule == "lapse" else None
    promise = Reservation(
        gang=scheduler.registry.gang_of("x").key, start_s=start_s, requests_on={}, unknown_since_s=unknown_since_s
    )
    if rule == "pause":
        state.passed = {promise.gang: 20.0}
    else:
        state.reservations = [promise]
    memory = scheduler._memory = CycleMemory(state, age_max_s=math.inf)
    memory.begin()
    memory.end()
    before = len(runs)
    scheduler.cycle(19.0)
    assert (scheduler.wake_at_s(), len(runs)) == (20.0, before)
    scheduler.cycle(20.0)
    assert len(runs) == before + 1


def test_gang_gets_another_reservation_when_the_pause_has_ended(runs: list[int]) -> None:
    scheduler = lapsing()
    scheduler.cycle(21.0)
    scheduler.finished("y")
    assert scheduler.state.reservations == []
    settled(scheduler, runs, 22.0)
    scheduler.cycle(40.9)
    assert scheduler.state.reservations == []
    scheduler.cycle(41.0)
    assert len(scheduler.state.reservations) == 1


def test_shorter_request_gets_a_reservation_once_an_equivalent_longer_one_ends_too_late(runs: list[int]) -> None:
    """Requests p1 and p2 are equivalent while both would end before the reserved start; p1 may have no reservation."""
    scheduler = made_of(node("a", 2), node("b", 4), reservations=2)
    scheduler.adopt(ask("r", run_time_s=100.0, evictable=False), node="a", started_at_s=0.0)
    scheduler.adopt(ask("s", 4, run_time_s=1000.0, evictable=False), node="b", started_at_s=0.0)
    scheduler.submit(ask("x", 2, priority=1))
    for name, run_time_s in (("p1", 60.0), ("p2", 50.0)):
        scheduler.submit(ask(name, 4, run_time_s=run_time_s))
    passed = scheduler.registry.gang_of("p1").key
    scheduler.state.passed = {passed: 1e6}
    scheduler._memory = CycleMemory(scheduler.state, age_max_s=math.inf)
    settled(scheduler, runs, 1.0)
    scheduler.cycle(40.0)  # p1 would end exactly at the reserved start
    assert [r.request_ids for r in scheduler.state.reservations] == [("x",)]
    scheduler.cycle(40.5)
    assert [r.request_ids for r in scheduler.state.reservations] == [("x",), ("p2",)]


def test_cycles_are_skipped_until_an_exceeded_estimate_is_extended_again(runs: list[int]) -> None:
    scheduler = made_of(node("a", 2), reservations=1)
    for name, run_time_s in (("r1", 20.0), ("r2", 100.0)):
        scheduler.adopt(ask(name, run_time_s=run_time_s, evictable=False), started_at_s=0.0)
    scheduler.submit(ask("x", 2))
    scheduler._memory = CycleMemory(scheduler.state, age_max_s=math.inf)
    settled(scheduler, runs, 1.0)
    assert scheduler.state.reservations[0].unknown_since_s is None
    assert scheduler.wake_at_s() == 20.0
    seen = []
    for at_s in (19.9, 20.0, 20.1, 21.9, 22.0, 22.1):
        before = len(runs)
        scheduler.cycle(at_s)
        seen.append(len(runs) - before)
        assert scheduler.state.reservations[0].unknown_since_s == (20.0 if at_s >= 20.0 else None)
    assert seen == [0, 1, 0, 0, 1, 0]


def test_cycle_after_one_that_only_made_a_reservation_is_skipped(runs: list[int]) -> None:
    scheduler = half_full(reservations=1)
    assert [len(runs) for at_s in (1.0, 1.5, 2.0) if scheduler.cycle(at_s) is not None] == [1, 1, 1]
    assert len(scheduler.state.reservations) == 1


def test_cycle_after_one_in_which_a_reservation_expired_is_not_skipped(runs: list[int]) -> None:
    scheduler = half_full(reservations=1, reservation_hold_s=0.0)  # the reservation expires at once
    assert [len(runs) for at_s in (1.0, 1.5, 2.0) if scheduler.cycle(at_s) is not None] == [1, 2, 2]


def test_cycle_after_one_that_dropped_a_reservation_is_not_skipped(runs: list[int]) -> None:
    scheduler = half_full(reservations=1)
    gang = scheduler.registry.gang_of("r").key
    scheduler.state.reservations = [Reservation(gang=gang, start_s=90.0, requests_on={})]
    assert [len(runs) for at_s in (1.0, 1.5, 2.0) if scheduler.cycle(at_s) is not None] == [1, 2, 2]


@pytest.mark.parametrize("restored", [True, False])
def test_cycle_is_skipped_only_if_the_waiting_mig_profiles_are_unchanged(
    restored: bool, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, run = half_full(), Cycle.run

    def taking(cycle: Cycle) -> tuple[Decision, ...]:  # simulates a trial placement of such a profile
        scheduler.cluster.mig_coming.clear()
        return run(cycle)

    monkeypatch.setattr(Cycle, "run", taking)
    updates.set_mig_coming(scheduler, ["1g.10gb"])
    scheduler.cycle(1.0)
    if restored:
        updates.set_mig_coming(scheduler, ["1g.10gb"])
    scheduler.cycle(1.5)
    assert len(runs) == (1 if restored else 2)


def test_cycle_after_one_that_failed_is_not_skipped(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = half_full()
    settled(scheduler, runs, 1.0)
    scheduler.state.unsettled = True
    with monkeypatch.context() as patch:

        def failing(cycle: Cycle) -> tuple[Decision, ...]:
            scheduler.state.unsettled = False
            raise RuntimeError("failed")

        patch.setattr(Cycle, "run", failing)
        with pytest.raises(RuntimeError):
            scheduler.cycle(2.0)
    before = len(runs)
    scheduler.cycle(2.5)
    assert len(runs) == before + 1


def test_no_cycle_is_skipped_with_random_policies(runs: list[int]) -> None:
    scheduler = Scheduler([node("a", 1)], [QueueSpec(name="q")], policy="random", options=Options(reservations=0))
    scheduler.submit(ask("x", 2))
    for at_s in range(5):
        scheduler.cycle(float(at_s))
    assert len(runs) == 5


def test_with_past_use_cycles_are_skipped_until_the_next_period(runs: list[int]) -> None:
    scheduler = half_full(half_life_s=10 * 1024.0)
    settled(scheduler, runs, 1.0)
    assert scheduler.wake_at_s() == 10.0
    before = len(runs)
    scheduler.cycle(9.9)
    assert len(runs) == before
    scheduler.cycle(10.0)
    assert len(runs) == before + 1


def test_cycle_is_not_skipped_after_the_longest_age_of_the_memory(runs: list[int]) -> None:
    scheduler = half_full()
    settled(scheduler, runs, 1.0)
    before = len(runs)
    scheduler.cycle(1.0 + AGE_MAX_S - 0.01)
    assert len(runs) == before
    scheduler.cycle(1.5 + AGE_MAX_S)
    assert len(runs) == before + 1
