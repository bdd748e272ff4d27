"""Tests of the unit table: it equals the registry after random changes, and its in-quota marks equal those of plain code."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.examples import examples
from tests.oracle.test_evictions import World

from calabash.sched import Scheduler
from calabash.sched.actions.quota import mark_in_quota
from calabash.sched.actions.victims import VictimRules
from calabash.sched.queues import registry as registry_module
from calabash.sched.queues.gang import Unit, units_of
from calabash.sched.queues.unit_table import UnitTable

STEPS = 8


def running(scheduler: Scheduler) -> dict[int, Unit]:
    """Return the running units by the sequence of their youngest member."""
    gangs = [gang for gangs in scheduler.registry.running_in.values() for gang in gangs.values()]
    return {unit.sequence: unit for gang in gangs for unit in units_of(gang)}


def assert_table_is_true(table: UnitTable, scheduler: Scheduler) -> None:
    units = running(scheduler)
    rows = np.flatnonzero(table.alive[: table.size])
    assert sorted(table.sequence[rows].tolist()) == sorted(units)
    for row in rows.tolist():
        unit, gang = units[table.sequence.item(row)], scheduler.registry.gangs[table.unit(row).gang]
        assert table.unit(row) == unit
        assert table.row(unit) == row
        assert table.queue_name(table.queue.item(row)) == unit.queue
        assert (table.core[row], table.priority[row], table.slices[row]) == (unit.core, unit.priority, unit.slices)
        assert table.started_at_s[row] == unit.started_at_s
        assert (table.gpu_milli[row], table.cpu_milli[row], table.host_memory_mib[row]) == unit.amount
        assert table.evictable[row] == all(m.request.evictable for m in unit.members)
        assert table.guarded[row] == any(m.request.guarded for m in unit.members)
        assert table.surplus[row] == (len(gang.running) - len(unit.members) if unit.core else 0)
        uses = np.flatnonzero(table.use_row[: table.uses] == row)
        found = [
            (table.use_node.item(u), table.use_device.item(u)) for u in uses for _ in range(table.use_count.item(u))
        ]
        on = [(m.placement.node, d) for m in unit.members for d in m.placement.devices]
        assert sorted(place for place in found if place[1] >= 0) == sorted(on)
        assert {node for node, _ in found} == {m.placement.node for m in unit.members}


def assert_order_is_true(table: UnitTable) -> None:
    alive = table.alive[: table.size]
    table.rank(alive)
    rows = np.flatnonzero(alive)
    ranked = [table.unit(row).order for row in rows[np.argsort(table.rank_of[rows])].tolist()]
    assert ranked == sorted(ranked)


def assert_marks_are_true(scheduler: Scheduler) -> None:
    rules, tree = VictimRules(scheduler.state), scheduler.tree
    marks = rules.marks()
    marked = {rules.table.sequence.item(row) for row in np.flatnonzero(marks & rules.table.alive[: rules.table.size])}
    wanted: set[int] = set()
    for queue in tree.form.leaves:
        units = [unit for unit in running(scheduler).values() if unit.queue == queue]
        found = mark_in_quota(units, tree.guaranteed(queue), tree.form.managed)
        wanted |= {unit.sequence for unit in found if unit.in_quota}
        assert {u.sequence for u in rules.units(queue) if u.in_quota} == {u.sequence for u in found if u.in_quota}
    assert marked == wanted


@pytest.mark.parametrize("changed_max", [5, registry_module.CHANGED_MAX])
def test_unit_table_equals_the_registry_after_random_changes(changed_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "CHANGED_MAX", changed_max)
    for seed in range(examples(12)):
        world, rng = World(seed), random.Random(seed)
        scheduler = world.scheduler()
        for step in range(STEPS):
            for act in world.events(step):
                act(scheduler)
            scheduler.cycle(world.now_s)
            assert_marks_are_true(scheduler)
            if rng.random() < 0.7:
                scheduler.state.units.sync(scheduler.registry)
                assert_table_is_true(scheduler.state.units, scheduler)
                assert_order_is_true(scheduler.state.units)


def test_closed_rows_are_dropped_once_they_are_most_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calabash.sched.queues.unit_table._CLOSED_MIN", 2)
    world = World(3)
    scheduler = world.scheduler()
    table = scheduler.state.units
    for step in range(STEPS):
        for act in world.events(step):
            act(scheduler)
        scheduler.cycle(world.now_s)
        table.sync(scheduler.registry)
        assert_table_is_true(table, scheduler)
        assert table.size <= 2 * np.count_nonzero(table.alive[: table.size]) + 20
    assert table.generation > 1
