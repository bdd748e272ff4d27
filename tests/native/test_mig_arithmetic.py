"""Tests that the MIG arithmetic and NVML agree on every layout: what is legal, what is left, what is refused."""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.native.simnode import ROOT, Node, compile_holder

from calabash.model.mig import (
    MigGeometry,
    MigProfile,
    MigState,
    free_compute_slices,
    legal_starts,
    with_instance,
    without_instance,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG needs root, as on a real card")

INSUFFICIENT, INVALID = 23, 2


def _cards() -> dict[str, list[dict[str, str]]]:
    lines = [line for line in (ROOT / "native/api/mig.tsv").read_text().splitlines() if not line.startswith("#")]
    found: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(lines, delimiter="\t"):
        found.setdefault(row["card"], []).append(row)
    return found


CARDS = _cards()


def geometry_of(card: str) -> MigGeometry:
    profiles = tuple(
        MigProfile(
            id=int(row["id"]),
            name=row["name"],
            compute=int(row["slices"]),
            slices=int(row["size"]),
            starts=tuple(int(start) for start in row["starts"].split(",")),
            limit=int(row["max_count"]),
            memory_mib=int(row["memory_mib"]),
            media=row["media"] == "1",
        )
        for row in CARDS[card]
    )
    return MigGeometry(
        slices=max(p.slices for p in profiles), compute=max(p.compute for p in profiles), profiles=profiles
    )


# A walk over layouts: instances by their number in the order of making, and after each step what NVML says is left.
WALK = """
import ctypes
h = handles()[0]
nvmlDeviceSetMigMode(h, 1)
made, answer = [], []
for step in STEPS:
    error = 0
    try:
        if step[0] < 0:
            nvmlGpuInstanceDestroy(made.pop(step[1] % len(made)))
        else:
            at = c_nvmlGpuInstancePlacement_t(step[1], step[2])
            made.append(nvmlDeviceCreateGpuInstanceWithPlacement(h, step[0], ctypes.byref(at)))
    except NVMLError as refused:
        error = refused.value
    answer.append([error, [nvmlDeviceGetGpuInstanceRemainingCapacity(h, p) > 0 for p in PROFILES]])
"""


def _walk(geometry: MigGeometry, dice: random.Random, length: int) -> list[list[int]]:
    """Return random steps: a profile, a start and its size; or -1 and the instance to destroy, if ours has one."""
    steps: list[list[int]] = []
    alive: list[tuple[MigProfile, int]] = []
    state = MigState()
    for _ in range(length):
        if alive and dice.random() < 0.42:
            number = dice.randrange(len(alive))
            steps.append([-1, number])
            state = without_instance(state, *alive.pop(number))
            continue
        profile = dice.choice(geometry.profiles)
        start = dice.randrange(geometry.slices)
        steps.append([profile.id, start, profile.slices])
        if start in legal_starts(geometry, profile, state):
            state = with_instance(state, profile, start)
            alive.append((profile, start))
    return steps


@pytest.mark.parametrize("card", CARDS)
def test_what_is_legal_by_the_arithmetic_is_what_nvml_accepts(tmp_path: Path, card: str) -> None:
    geometry = geometry_of(card)
    steps = _walk(geometry, random.Random(card), 1500)
    node = Node(tmp_path / "node.state", card, compile_holder())
    told: list[Any] = node.nvml(f"STEPS, PROFILES = {steps!r}, {[p.id for p in geometry.profiles]!r}\n" + WALK)
    node.close()
    by_id = {profile.id: profile for profile in geometry.profiles}
    alive: list[tuple[MigProfile, int]] = []
    state, accepted, refused = MigState(), 0, 0
    for step, (error, left) in zip(steps, told, strict=True):
        if step[0] < 0:
            assert error == 0
            state = without_instance(state, *alive.pop(step[1]))
        else:
            profile, start = by_id[step[0]], step[1]
            legal = start in legal_starts(geometry, profile, state)
            assert error == (0 if legal else INSUFFICIENT if start in profile.starts else INVALID), step
            if legal:
                state = with_instance(state, profile, start)
                alive.append((profile, start))
            accepted += legal
            refused += not legal
        assert left == [bool(legal_starts(geometry, profile, state)) for profile in geometry.profiles]
    assert min(accepted, refused) > 150


# A walk over the compute instances of one GPU instance: a size and a start, or minus one and which is destroyed.
PARTS = """
import ctypes
h = handles()[0]
nvmlDeviceSetMigMode(h, 1)
answer = []
for profile, steps in WALKS:
    gi, made = nvmlDeviceCreateGpuInstance(h, profile), []
    numbers = {}
    for number in range(7):
        try:
            info = nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, number, 0)
            numbers[info.sliceCount] = info.id
        except NVMLError:
            pass
    told = []
    for size, at in steps:
        error = 0
        try:
            if size < 0:
                nvmlComputeInstanceDestroy(made.pop(at % len(made)))
            else:
                place = c_nvmlComputeInstancePlacement_t(at, size)
                made.append(nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, numbers[size], ctypes.byref(place)))
        except NVMLError as refused:
            error = refused.value
        told.append(error)
    for part in made:
        nvmlComputeInstanceDestroy(part)
    nvmlGpuInstanceDestroy(gi)
    answer.append([sorted(numbers), told])
"""


def _walk_parts(geometry: MigGeometry, profile: MigProfile, dice: random.Random) -> list[list[int]]:
    sizes = [size for size in range(1, profile.compute + 1) if geometry.profile(f"{size}c.{profile.name}")]
    steps: list[list[int]] = []
    alive: list[tuple[int, int]] = []
    for _ in range(60):
        if alive and dice.random() < 0.4:
            number = dice.randrange(len(alive))
            steps.append([-1, number])
            alive.pop(number)
            continue
        size, start = dice.choice(sizes), dice.randrange(profile.compute)
        steps.append([size, start])
        if start in _open(geometry, profile, size, alive):
            alive.append((size, start))
    return steps


def _open(geometry: MigGeometry, profile: MigProfile, size: int, alive: list[tuple[int, int]]) -> tuple[int, ...]:
    part = geometry.profile(f"{size}c.{profile.name}")
    assert part is not None
    return free_compute_slices(part, sum(((1 << other) - 1) << start for other, start in alive))


@pytest.mark.parametrize("card", CARDS)
def test_where_a_part_has_room_by_the_arithmetic_is_where_nvml_makes_it(tmp_path: Path, card: str) -> None:
    geometry = geometry_of(card)
    dice = random.Random(card)
    walks = [(p, _walk_parts(geometry, p, dice)) for p in geometry.profiles if not p.media]
    node = Node(tmp_path / "node.state", card, compile_holder())
    told: list[Any] = node.nvml(f"WALKS = {[(p.id, steps) for p, steps in walks]!r}\n" + PARTS)
    node.close()
    accepted = refused = 0
    for (profile, steps), (sizes, errors) in zip(walks, told, strict=True):
        known = [size for size in range(1, 9) if geometry.profile(f"{size}c.{profile.name}")]
        assert known == sizes
        alive: list[tuple[int, int]] = []
        for (size, at), error in zip(steps, errors, strict=True):
            if size < 0:
                assert error == 0
                alive.pop(at)
                continue
            legal = at in _open(geometry, profile, size, alive)
            assert error == (0 if legal else INSUFFICIENT), (profile.name, size, at, alive)
            if legal:
                alive.append((size, at))
            accepted += legal
            refused += not legal
    assert min(accepted, refused) > 20
