"""Random hostile steps beside an honest tenant: ``python -m tests.hostile.fuzz --steps 10000 --seed 1``.

Two hostile users each do half of the steps (``fuzz_steps``) at the same time. Root kills the pool or its arbiter every
few seconds and starts the pool again. The share and the answers of the honest tenant are measured all the time. The
program exits with status 0 if the tenant was not harmed, nothing was left on the machine and the pool runs. It prints
one line for each measured value, like a benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.hostile.fuzz_steps import Hostile, go
from tests.hostile.people import Child, User
from tests.hostile.world import ANSWER_S, POINTS, SHARE_PERCENT, HostileWorld, p99

KILL_EVERY_S = 6.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of a run."""

    steps: int
    seed: int
    seconds: float = 0.0
    share_percent: float = 0.0
    others_percent: float = 0.0  # of the tenant's card
    taken: int = 0
    refused: int = 0
    p99_ms: float = 0.0
    answers: int = 0
    pool_killed: int = 0
    restart_s: float = 0.0  # the longest
    arbiter_killed: int = 0
    done: dict[str, int] = field(default_factory=dict)
    stopped: dict[str, int] = field(default_factory=dict)  # steps that ended by an error or a timeout

    def harm(self) -> list[str]:
        """Return the ways in which the honest tenant was harmed.

        A share that is too small counts as harm only if other processes used the time of the card. Otherwise the
        machine was too busy for the honest tenant to keep the card busy.
        """
        found = []
        if self.share_percent < SHARE_PERCENT - POINTS and self.others_percent > 100 - SHARE_PERCENT + POINTS:
            found.append(f"its share was {self.share_percent:.1f} percent, that of others {self.others_percent:.1f}")
        if self.refused or not self.taken:
            found.append(f"{self.refused} of {self.taken + self.refused} allocations were refused")
        if self.p99_ms > ANSWER_S * 1000:
            found.append(f"p99 of its {self.answers} answers was {self.p99_ms:.0f} ms of the pool's processor time")
        return found


def fuzz(world: HostileWorld, *, steps: int, seed: int) -> Outcome:
    """Run the fuzzer on a pool. The caller must call ``world.settle`` afterwards."""
    outcome = Outcome(steps=steps, seed=seed)
    neighbour, probe, chance = world.neighbour, world.probe, random.Random(seed)
    assert neighbour is not None
    assert probe is not None
    probe.begin()
    launches, taken, refused = neighbour.counted()
    begun, busy = neighbour.mark()
    card = neighbour.card_busy_ns()
    actors = [_actor(world, steps // 2, seed * 2 + number) for number in range(2)]
    kill_at = begun + KILL_EVERY_S * chance.uniform(0.5, 1.5)
    while not all(actor.says("\ndone ") for actor in actors):
        assert all(actor.alive() for actor in actors), [(actor.code, actor.text()[-2000:]) for actor in actors]
        time.sleep(0.05)
        if time.monotonic() > kill_at:
            _kill(world, chance, outcome)
            kill_at = time.monotonic() + KILL_EVERY_S * chance.uniform(0.5, 1.5)
    now, busy_now = neighbour.mark()
    outcome.seconds = now - begun
    outcome.share_percent = (busy_now - busy) / outcome.seconds / 1e7
    outcome.others_percent = (neighbour.card_busy_ns() - card - busy_now + busy) / outcome.seconds / 1e7
    outcome.taken = neighbour.counted()[1] - taken
    outcome.refused = neighbour.counted()[2] - refused
    answers = probe.answers_s()
    outcome.answers = len(answers)
    outcome.p99_ms = p99(answers) * 1000 if answers else float("inf")
    done: Counter[str] = Counter()
    stopped: Counter[str] = Counter()
    for actor in actors:
        told = json.loads(actor.text().rpartition("\ndone ")[2])
        done.update(told["done"])
        stopped.update(told["stopped"])
    outcome.done, outcome.stopped = dict(done), dict(stopped)
    assert neighbour.program.alive(), neighbour.program.text()
    assert neighbour.counted()[0] > launches
    return outcome


def _actor(world: HostileWorld, steps: int, seed: int) -> Child:
    user: User = world.user()
    neighbour, daemon = world.neighbour, world.daemon
    assert neighbour is not None
    assert daemon is not None
    me = Hostile(
        home=world.home,
        hostile=world.program("hostile"),
        kernels=world.kernels,
        victims=[neighbour.program.pid, daemon.pid, world.client.get("/v1/status")["arbiter_pid"]],
        random=random.Random(),
    )
    return user.keeps(go, me, steps, seed)


def _kill(world: HostileWorld, chance: random.Random, outcome: Outcome) -> None:
    """Kill the pool with SIGKILL and start it again, or kill only its arbiter."""
    if chance.random() < 0.5:
        arbiter = world.client.get("/v1/status")["arbiter_pid"]
        with suppress(ProcessLookupError):
            if arbiter:
                os.kill(arbiter, signal.SIGKILL)
                outcome.arbiter_killed += 1
    else:
        world.kill()
        begun = time.monotonic()
        world.up()
        outcome.restart_s = max(outcome.restart_s, time.monotonic() - begun)
        outcome.pool_killed += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("error: the fuzzer needs root, who becomes the hostile users\nhint: run it with sudo", file=sys.stderr)
        return 2
    print(f"seed {arguments.seed}", flush=True)
    world = HostileWorld()
    try:
        outcome = fuzz(world, steps=arguments.steps, seed=arguments.seed)
        harm = outcome.harm()
        left = ""
        try:
            world.settle()
        except AssertionError as error:
            left = str(error)
    finally:
        world.close()
    for name, value, unit, ok in (
        ("steps", outcome.steps, "", True),
        ("time", round(outcome.seconds, 1), "s", True),
        (
            "neighbour's share",
            round(outcome.share_percent, 2),
            "%",
            outcome.share_percent >= SHARE_PERCENT - POINTS,
        ),
        ("neighbour's allocations refused", outcome.refused, "", not outcome.refused),
        ("p99 of the pool's answers", round(outcome.p99_ms, 1), "ms", outcome.p99_ms <= ANSWER_S * 1000),
        ("times the pool was killed", outcome.pool_killed, "", True),
        ("longest start of the pool", round(outcome.restart_s, 1), "s", True),
        ("times the arbiter was killed", outcome.arbiter_killed, "", True),
        ("left behind", left or "nothing", "", not left),
    ):
        print(f"{name:34} {value:>12} {unit:3} {'ok' if ok else 'short'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(outcome) | {"harm": harm, "left": left}, indent=1) + "\n")
    return 1 if harm or left else 0


if __name__ == "__main__":
    sys.exit(main())
