"""Tests of defragmentation: moves are bounded, move only movable requests, and leave all requests placed."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.sched.actions.defragment import Moves, Occupant, find_moves
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.engine import Engine
from calabash.sched.cluster.placer import ClusterPlacer
from calabash.sched.cluster.shape import Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.cluster.transaction import Transaction
from calabash.sched.policies.registry import policy_named

MOVES_MAX = 4


def whole(count: int) -> Shape:
    return Shape(gpu_count=count, gpu_milli=1000)


def part(milli: int) -> Shape:
    return Shape(gpu_count=1, gpu_milli=milli)


class World:
    """A random cluster with running requests."""

    def __init__(self, *devices: int) -> None:
        nodes = [
            NodeSpec(name=f"n{i}", cpu_milli=1000, memory_mib=1000, gpus=(GpuSpec(),) * count)
            for i, count in enumerate(devices)
        ]
        self.cluster = Cluster(nodes, order_seed=None)
        self.placer = ClusterPlacer(self.cluster, Engine(self.cluster, policy_named("bestfit")))
        self.transaction = Transaction(self.placer)
        self.occupants: dict[str, Occupant] = {}

    def place(self, name: str, shape: Shape, node: int, *, movable: bool = True) -> bool:
        placement = self.placer.choose_on(shape, node)
        if placement is None:
            return False
        self.cluster.place(shape, placement)
        self.occupants[name] = Occupant(id=name, shape=shape, placement=placement, movable=movable)
        return True

    def find(self, shape: Shape, *, moves_max: int = MOVES_MAX, cost_max_milli: int = 16_000) -> Moves | None:
        return find_moves(
            self.transaction,
            self.placer,
            shape,
            lambda row: [o for o in self.occupants.values() if o.placement.node == row],
            moves_max=moves_max,
            cost_max_milli=cost_max_milli,
        )


def check_random(seed: int) -> bool:
    rng = random.Random(seed)
    world = World(*(rng.choice((1, 2, 4)) for _ in range(rng.randint(1, 4))))
    for i in range(rng.randint(1, 10)):
        shape = rng.choice([whole(1), whole(2), part(200), part(500), part(700)])
        world.place(f"o{i}", shape, rng.randrange(world.cluster.node_count), movable=rng.random() < 0.8)
    shape = rng.choice([whole(1), whole(2), whole(4)])
    before = world.cluster.gpu_free_milli.copy()
    if world.placer.choose(shape) is not None:
        return False
    moves = world.find(shape)
    if moves is None:
        assert (world.cluster.gpu_free_milli == before).all()
        return False
    assert 0 < len(moves.moved) <= MOVES_MAX
    for occupant, _ in moves.moved:
        assert occupant.movable
        assert occupant.shape.gpu_count < shape.gpu_count or not occupant.shape.whole
    # Releasing all requests at their reported placements leaves an empty cluster.
    places = {o.id: (o.shape, o.placement) for o in world.occupants.values()}
    places.update({o.id: (o.shape, p) for o, p in moves.moved})
    places["newcomer"] = (shape, moves.placement)
    for occupant_shape, placement in places.values():
        world.cluster.release(occupant_shape, placement)
    for row in range(world.cluster.node_count):
        count = int(world.cluster.gpu_count[row])
        assert (world.cluster.gpu_free_milli[row, :count] == 1000).all()
    return True


def test_moves_are_within_bounds_allowed_and_complete() -> None:
    count = examples(1500)
    assert sum(check_random(seed) for seed in range(count)) > 40 * count / 1500


@given(st.integers(0, 10**9))
@settings(max_examples=examples(100), deadline=None)
def test_search_holds_in_generated_clusters(seed: int) -> None:
    check_random(seed)


def test_cheapest_node_is_chosen_for_moves() -> None:
    world = World(4, 4, 4)
    world.place("big", whole(2), 0)
    world.place("small", part(300), 1)
    world.place("third", whole(3), 2)
    moves = world.find(whole(4))
    assert moves is not None
    assert [o.id for o, _ in moves.moved] == ["small"]
    assert moves.placement.node == 1


def test_moves_above_the_highest_cost_are_not_made() -> None:
    world = World(4, 4)
    world.place("a", whole(1), 0)
    world.place("b", whole(1), 1)
    assert world.find(whole(4), cost_max_milli=1199) is None
    assert world.find(whole(4), cost_max_milli=1200) is not None


def test_request_for_as_many_devices_is_never_moved() -> None:
    world = World(4, 4)
    world.place("a", whole(2), 0)
    world.place("b", part(500), 0)
    world.place("c", part(500), 0)
    world.place("d", whole(3), 1)
    moves = world.find(whole(2))
    assert moves is None or all(o.shape.gpu_count < 2 or not o.shape.whole for o, _ in moves.moved)
