"""Random histories of the scheduler, checked by an independent ledger. ``CALABASH_ORACLE_SEED=N`` runs history N only."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from tests.examples import SEARCHING
from tests.oracle.histories import History
from tests.oracle.ledger import Ledger, ViolationError

from calabash.model.errors import Reason
from calabash.model.mig import MigPlace
from calabash.sched import (
    UNLIMITED,
    Amount,
    Bind,
    Evict,
    GpuSpec,
    Move,
    NodePlacement,
    NodeSpec,
    QueueSpec,
    Request,
    Shape,
)
from calabash.sched.cluster.mig_tables import geometry_of

CYCLES = 200
PARTS = 5
FOUND = (1049, 1117)
FOUND_CYCLES = 250
HISTORIES_PER_PART = 12 if SEARCHING else 2


def seeds(part: int) -> list[int]:
    """Return the seeds of one part: the given one, new ones in ``make examples``, else always the same ones."""
    if given := os.environ.get("CALABASH_ORACLE_SEED"):
        return [int(given)] if part == 0 else []
    start = random.SystemRandom().randrange(1 << 30) if SEARCHING else part * HISTORIES_PER_PART
    return [start + number for number in range(HISTORIES_PER_PART)]


@pytest.mark.hypothesis
@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_break_no_rule_of_the_ledger(part: int) -> None:
    for seed in seeds(part):
        try:
            assert History(seed).run(CYCLES) > 0
        except Exception as error:
            pytest.fail(f"{error!r}; replay with CALABASH_ORACLE_SEED={seed}")


@pytest.mark.hypothesis
def test_random_histories_with_a_limit_per_cycle_break_no_rule_of_the_ledger() -> None:
    for seed in seeds(0):
        try:
            assert History(seed, limited=True).run(CYCLES) > 0
        except Exception as error:
            pytest.fail(f"{error!r}; replay with CALABASH_ORACLE_SEED={seed}")


@pytest.mark.hypothesis
@pytest.mark.parametrize("limited", [False, True])
def test_random_histories_with_changes_by_callers_break_no_rule_of_the_ledger(*, limited: bool) -> None:
    for seed in seeds(0):
        try:
            assert History(seed, limited=limited, changing=True).run(CYCLES // 2) > 0
        except Exception as error:
            pytest.fail(f"{error!r}; replay with CALABASH_ORACLE_SEED={seed}")


@pytest.mark.parametrize("seed", FOUND)
def test_history_of_a_fixed_fault_breaks_no_rule(seed: int) -> None:
    assert History(seed).run(FOUND_CYCLES) > 0


WHOLE = Shape(gpu_count=1, gpu_milli=1000, mode="exclusive", gpu_slices=1, gpu_slices_max=1)


def share(mode: str, milli: int = 10, mib: int = 64, slices: int = 1) -> Shape:
    most = {"vgpu": 64, "mps": 48, "timeslice": 4}[mode]
    return Shape(gpu_count=1, gpu_milli=milli, gpu_memory_mib=mib, gpu_slices=slices, gpu_slices_max=most, mode=mode)


def ledger(*shapes: Shape, gang: str = "", limit: Amount = UNLIMITED) -> Ledger:
    """Return a ledger of one node of two devices with requests r0, r1, ... in the queue a below top."""
    node = NodeSpec(
        name="n",
        cpu_milli=8000,
        memory_mib=8192,
        gpus=(GpuSpec(model="A100-80", memory_mib=81_920, geometry=geometry_of("A100-80", 81_920)),) * 2,
    )
    queues = [QueueSpec(name="top", limit=limit), QueueSpec(name="a", parent="top"), QueueSpec(name="b")]
    made = Ledger([node], queues)
    for number, shape in enumerate(shapes):
        made.submitted(
            Request(
                id=f"r{number}", shape=shape, queue="a", gang=gang, min_member=2 if gang else 1, submitted_at_s=number
            )
        )
    return made


def bind(name: str, device: int = 0, start: int | None = None) -> Bind:
    places = () if start is None else ((MigPlace(start),),)
    return Bind(id=name, node="n", placement=NodePlacement(node=0, devices=(device,), mig_places=places))


def evict(name: str, by: str) -> Evict:
    return Evict(id=name, reason=Reason.PREEMPT, by=by)


def big(profile: str) -> Shape:
    return Shape(gpu_count=1, mig_profile=profile)


def both(first: Shape, second: Shape, starts: tuple[int | None, int | None] = (None, None)) -> None:
    ledger(first, second).decided([bind("r0", start=starts[0]), bind("r1", start=starts[1])], 0.0, None)


def lost_device() -> None:
    made = ledger(WHOLE)
    made.health("n", 0, healthy=False)
    made.decided([bind("r0")], 0.0, None)


def cordoned_node() -> None:
    made = ledger(WHOLE)
    made.cordon("n", schedulable=False)
    made.decided([bind("r0")], 0.0, None)


def start_at_a_lowered_limit() -> None:
    made = ledger(WHOLE, WHOLE, WHOLE)
    made.decided([bind("r0"), bind("r1", 1)], 0.0, None)
    limit = UNLIMITED._replace(gpu_milli=1000)
    made.queues_set([QueueSpec(name="top", limit=limit), QueueSpec(name="a", parent="top")])
    made.decided([evict("r0", "r2"), bind("r2")], 1.0, None)


def start_of_what_runs_already() -> None:
    made = ledger(WHOLE)
    request = Request(id="r9", shape=WHOLE, queue="a")
    made.adopted(request, "n", NodePlacement(node=0, devices=(0,)), 0.0)
    made.decided([bind("r9", 1)], 0.0, None)


def bound_and_evicted() -> None:
    ledger(WHOLE, WHOLE).decided([bind("r0"), evict("r0", "r1"), bind("r1")], 0.0, None)


def bound_and_moved() -> None:
    move = Move(id="r0", node="n", placement=NodePlacement(node=0, devices=(1,)), by="r1")
    ledger(WHOLE, WHOLE).decided([bind("r0"), move, bind("r1")], 0.0, None)


def eviction_without_start() -> None:
    made = ledger(WHOLE, WHOLE)
    made.decided([bind("r0")], 0.0, None)
    made.submitted(Request(id="r2", shape=WHOLE, queue="a"))
    made.decided([evict("r0", "r1")], 1.0, None)
    made.finish()


def eviction_used_by_another() -> None:
    made = ledger(WHOLE, WHOLE, WHOLE)
    made.decided([bind("r0")], 0.0, 0.0)
    made.decided([evict("r0", "r1"), bind("r2"), bind("r1", 1)], 1.0, None)


def evicted_too_soon() -> None:
    made = ledger(WHOLE, WHOLE)
    made.decided([bind("r0")], 10.0, None)
    made._min_run_time_s = 60.0
    made.submitted(Request(id="r2", shape=WHOLE, queue="a"))
    made.decided([evict("r0", "r1"), bind("r1")], 69.9, None)


def acts_without_wake_up(wake_at_s: float | None) -> None:
    made = ledger(WHOLE)
    made.decided([], 0.0, wake_at_s)
    made.decided([bind("r0")], 5.0, None)


def missed_start() -> None:
    made = ledger(WHOLE)
    made.decided([], 0.0, None)
    made.check_starts()


def missed_reclaim() -> None:
    made = ledger(WHOLE, WHOLE)
    made.queues = {"a": QueueSpec(name="a"), "b": QueueSpec(name="b", deserved=Amount(1000))}
    made.submitted(Request(id="r9", shape=WHOLE, queue="b"))
    made.decided([bind("r0"), bind("r1", 1)], 0.0, None)
    made.check_reclaim()


FALSIFIED: dict[str, tuple[str, Callable[[], object]]] = {
    "two whole": ("compute", lambda: both(WHOLE, WHOLE)),
    "compute": ("compute", lambda: both(share("vgpu", 600), share("vgpu", 600))),
    "memory": ("memory", lambda: both(share("mps", mib=50_000), share("mps", mib=50_000))),
    "modes": ("mode", lambda: both(share("mps"), share("vgpu"))),
    "vgpu slices": ("slices", lambda: both(share("vgpu", slices=64), share("vgpu"))),
    "mps slices": ("slices", lambda: both(share("mps", slices=48), share("mps"))),
    "replicas": ("slices", lambda: both(share("timeslice", slices=4), share("timeslice"))),
    "mig overlap": ("mig", lambda: both(big("3g.40gb"), big("2g.20gb"), (0, 2))),
    "mig start": ("mig", lambda: both(big("3g.40gb"), big("2g.20gb"), (0, 5))),
    "lost device": ("placer", lost_device),
    "limit above the leaf": (
        "limit",
        lambda: ledger(WHOLE, limit=Amount(500, 1 << 40, 1 << 40)).decided([bind("r0")], 0.0, None),
    ),
    "cordoned node": ("placer", cordoned_node),
    "start at a lowered limit": ("limit", start_at_a_lowered_limit),
    "start of what runs already": ("once", start_of_what_runs_already),
    "partial gang": ("gang", lambda: ledger(WHOLE, WHOLE, gang="g").decided([bind("r0")], 0.0, None)),
    "bind and evict": ("once", bound_and_evicted),
    "bind and move": ("once", bound_and_moved),
    "eviction without start": ("eviction", eviction_without_start),
    "eviction for another": ("eviction", eviction_used_by_another),
    "no wake-up": ("wake", lambda: acts_without_wake_up(None)),
    "before the wake-up": ("wake", lambda: acts_without_wake_up(6.0)),
    "evicted before its minimum run time": ("rest", evicted_too_soon),
    "missed start": ("starts", missed_start),
    "missed reclaim": ("reclaim", missed_reclaim),
}


@pytest.mark.parametrize("case", FALSIFIED)
def test_falsified_decision_is_found(case: str) -> None:
    check, act = FALSIFIED[case]
    with pytest.raises(ViolationError) as found:
        act()
    assert found.value.check == check
