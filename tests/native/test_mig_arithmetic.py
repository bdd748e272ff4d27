"""The arithmetic of MIG and NVML say the same of every layout: what is legal, what is left, what is refused."""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.native.simnode import ROOT, Node, compile_holder

from calabash.model.mig import MigGeometry, MigProfile, MigState, legal_starts, occupied, vacated

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
    """Steps: a profile, a start and its size; or -1 and which instance is destroyed, where there is one by our reckoning."""
    steps: list[list[int]] = []
    alive: list[tuple[MigProfile, int]] = []
    state = MigState()
    for _ in range(length):
        if alive and dice.random() < 0.42:
            number = dice.randrange(len(alive))
            steps.append([-1, number])
            state = vacated(state, *alive.pop(number))
            continue
        profile = dice.choice(geometry.profiles)
        start = dice.randrange(geometry.slices)
        steps.append([profile.id, start, profile.slices])
        if start in legal_starts(geometry, profile, state):
            state = occupied(state, profile, start)
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
            state = vacated(state, *alive.pop(step[1]))
        else:
            profile, start = by_id[step[0]], step[1]
            legal = start in legal_starts(geometry, profile, state)
            assert error == (0 if legal else INSUFFICIENT if start in profile.starts else INVALID), step
            if legal:
                state = occupied(state, profile, start)
                alive.append((profile, start))
            accepted += legal
            refused += not legal
        assert left == [bool(legal_starts(geometry, profile, state)) for profile in geometry.profiles]
    assert min(accepted, refused) > 150
