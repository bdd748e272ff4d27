"""Test of the pressure heap: the first queue has the least pressure after any starts, evictions and changes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched.amounts import Amount
from calabash.sched.queues.pressure_heap import PressureHeap
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.queues.tree import QueueTree

AMOUNTS = (Amount(1000), Amount(2000), Amount(0, 500))


def random_tree(rng: random.Random) -> QueueTree:
    """Return a tree of up to four levels with demand in every leaf, at different depths."""
    specs = [QueueSpec(name=f"a{number}", deserved=Amount(rng.choice((0, 4000)))) for number in range(3)]
    for number in range(rng.randint(1, 12)):
        parent = rng.choice(specs).name
        specs.append(QueueSpec(name=f"{parent}.{number}", parent=parent, deserved=Amount(rng.choice((0, 1000)))))
    tree = QueueTree(specs)
    tree.set_capacity(Amount(20_000, 8000))
    for leaf in tree.form.leaves:
        tree.use.add_waiting(leaf, Amount(20_000, 8000))
    return tree


def expected(tree: QueueTree, amounts: dict[str, Amount]) -> str:
    return min((tree.pressure(queue, amount), queue) for queue, amount in amounts.items())[1]


@given(st.integers(0, 1 << 30))
@settings(max_examples=examples(60), deadline=None)
def test_first_queue_has_the_least_pressure_after_random_changes(seed: int) -> None:
    rng = random.Random(seed)
    tree = random_tree(rng)
    fairest, amounts = PressureHeap(tree), dict.fromkeys(tree.form.leaves, AMOUNTS[0])
    for leaf, amount in amounts.items():
        fairest.put(leaf, amount)
    running: list[tuple[str, Amount]] = []
    for _ in range(60):
        leaf, amount = rng.choice(tree.form.leaves), rng.choice(AMOUNTS)
        match rng.choice(("start", "start", "start", "stop", "put", "take out")):
            case "start":
                tree.use.start(leaf, amount)
                running.append((leaf, amount))
                fairest.use_increased(leaf)
            case "stop" if running:
                left, freed = running.pop(rng.randrange(len(running)))
                tree.use.stop(left, freed)
                tree.use.start(leaf, amount)  # start after an eviction
                running.append((leaf, amount))
                fairest.use_increased(leaf)
                fairest.use_decreased(left)
            case "put":
                fairest.put(leaf, amount)
                amounts[leaf] = amount
            case "take out" if leaf in amounts and len(amounts) > 1:
                fairest.remove(leaf)
                del amounts[leaf]
        assert all((leaf in fairest) == (leaf in amounts) for leaf in tree.form.leaves)
        if rng.random() < 0.7:
            assert fairest.first() == expected(tree, amounts)
            assert fairest.amount(fairest.first()) == amounts[fairest.first()]
