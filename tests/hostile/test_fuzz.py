"""Random hostile steps, a few hundred at a time; ``python -m tests.hostile.fuzz`` does ten thousand."""

from __future__ import annotations

import random

import pytest
from tests.hostile.fuzz import fuzz
from tests.hostile.world import HostileWorld

STEPS = 200
RUNS = 3  # a forged page is ahead of its share until it is detected; a fault of the product harms in each run


@pytest.mark.parametrize("seed", [1, None], ids=["fixed", "random"])
def test_random_hostile_steps_harm_neither_another_tenant_nor_the_pool(world: HostileWorld, seed: int | None) -> None:
    chosen = random.SystemRandom().randrange(2**31) if seed is None else seed
    print(f"seed {chosen}: python -m tests.hostile.fuzz --steps {STEPS} --seed {chosen}")
    outcomes = [fuzz(world, steps=STEPS, seed=chosen)]
    while outcomes[-1].harm() and len(outcomes) < RUNS:
        outcomes.append(fuzz(world, steps=STEPS, seed=chosen))
    assert outcomes[-1].harm() == [], outcomes
    assert all(outcome.refused == 0 for outcome in outcomes)
    assert world.client.get("/v1/status")["devices"] == 2
    with world.unharmed():  # the honest tenant has its whole share again
        pass
