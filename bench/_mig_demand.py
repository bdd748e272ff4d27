"""Random demand for MIG instances, and an exhaustive search that shows how much of it could be placed.

One card. In each step some tenants leave, whose instances stay idle (one in ten of them fixed), and some requests come;
requests that find no placement wait. The exhaustive search sees the same card and queue and tries every start for every
request: as many as possible, earlier requests before later ones, with the fewest instances destroyed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from functools import lru_cache

from calabash.model.mig import MigGeometry, MigInstance, MigState, legal_starts, memory_mask, mig_state, with_instance
from calabash.model.mig_plan import apply_choice, plan_positions

STEPS = 12
LINE_MAX = 6


@dataclass(slots=True)
class Quality:
    """Sums over demand sequences: requests placed and instances destroyed, by planner and search; decision times."""

    asked: int = 0
    placed: int = 0
    placed_best: int = 0
    destroyed: int = 0
    destroyed_best: int = 0
    seconds: list[float] = field(default_factory=list)


def follow(geometry: MigGeometry, dice: random.Random, quality: Quality) -> None:
    """Run one demand sequence and compare the planner's decisions with the search."""
    names = [p.name for p in geometry.profiles]
    weights = [1 if p.media else 5 - p.slices // 2 for p in geometry.profiles]
    held: list[tuple[str, int]] = []
    idle: tuple[MigInstance, ...] = ()
    line: list[str] = []
    _fewest.cache_clear()  # a garbage collection that walks through the cache would count as the planner's time
    for _ in range(STEPS):
        for place in [place for place in held if dice.random() < 0.3]:
            held.remove(place)
            idle += (MigInstance(profile=place[0], start=place[1], fixed=dice.random() < 0.1),)
        came = dice.choices(names, weights, k=dice.randint(0, 4))
        line = (line + came)[:LINE_MAX]
        state = mig_state(geometry, held)
        began = time.thread_time()
        choices = plan_positions(geometry, state, idle, line)
        quality.seconds.append(time.thread_time() - began)
        placed, destroyed = exhaustive(geometry, state, idle, line)
        quality.asked += len(came)
        quality.placed_best += placed
        quality.destroyed_best += destroyed
        for choice in choices:
            if choice is not None:
                quality.placed += 1
                quality.destroyed += len(choice.destroyed)
                state, idle = apply_choice(geometry, state, idle, choice)
                held.append((choice.profile, choice.start))
        line = [name for name, choice in zip(line, choices, strict=True) if choice is None]


def exhaustive(
    geometry: MigGeometry, state: MigState, idle: tuple[MigInstance, ...], line: list[str]
) -> tuple[int, int]:
    """Return the number of requests that any search could place, in order, and the fewest instances destroyed for that."""
    kept: tuple[str, ...] = ()
    destroyed = 0
    for name in line:
        fewest = _fewest(geometry, state, frozenset(idle), (*kept, name))
        if fewest is not None:
            kept, destroyed = (*kept, name), fewest
    return len(kept), destroyed


@lru_cache(maxsize=200_000)
def _fewest(geometry: MigGeometry, state: MigState, idle: frozenset[MigInstance], names: tuple[str, ...]) -> int | None:
    """Return the fewest instances destroyed to place all names, or None if they do not fit; tries every start of the first."""
    if not names:
        return 0
    profile = geometry.profile(names[0])
    assert profile is not None
    found: list[int] = []
    for start in legal_starts(geometry, profile, state):
        same = frozenset(i for i in idle if i.place == (profile.name, start))
        gone = frozenset() if same else frozenset(i for i in idle if _conflicts(geometry, i, profile.name, start))
        left = idle - gone - same
        compute = state.compute + profile.compute + sum(_compute(geometry, i) for i in left)
        if any(i.fixed for i in gone) or compute > geometry.compute:
            continue
        more = _fewest(geometry, with_instance(state, profile, start), left, names[1:])
        if more is not None:
            found.append(len(gone) + more)
    return min(found, default=None)


def _conflicts(geometry: MigGeometry, instance: MigInstance, name: str, start: int) -> bool:
    other, profile = geometry.profile(instance.profile), geometry.profile(name)
    assert other is not None
    assert profile is not None
    return bool(memory_mask(other, instance.start) & memory_mask(profile, start)) or (other.media and profile.media)


def _compute(geometry: MigGeometry, instance: MigInstance) -> int:
    profile = geometry.profile(instance.profile)
    return profile.compute if profile else 0
