"""Enforcement against an attacker: a tenant with a limit of 2 GiB asks for 8 GiB, with imitated slots and without the library.

The tenant is an ordinary user of a pool of root. *Had* is the simulator's own count of what its processes hold, *ended after*
the time from the first byte beyond the limit until the last process is gone.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from tests.hostile.people import Child, User
from tests.hostile.test_slots import IMITATIONS, raised
from tests.hostile.world import HostileWorld

from bench._report import Report, run

CAP_MIB, WANTED_MIB = 2048, 8192
SLICE: dict[str, Any] = {"memory_mib": CAP_MIB, "cores": 10}
ROUNDS = 5
WITHIN_S = 20.0


def had(world: HostileWorld) -> int:
    """Return the memory that all programs hold of the card, in MiB.

    All processes count: the attacker is the only user, and in a user namespace its programs have another user ID.
    """
    return sum(d.alloc_bytes + d.context_bytes for p in world.card_state().processes for d in p.devices) >> 20


def attack(world: HostileWorld, user: User, tenant: Child) -> tuple[int, float]:
    """Run the attack; return the most that the user had in MiB, and for how long it was beyond the limit in seconds."""
    most, since_s, until_s = 0, 0.0, time.monotonic() + WITHIN_S
    while time.monotonic() < until_s and tenant.alive():
        now_mib = had(world)
        most = max(most, now_mib)
        if now_mib > CAP_MIB and not since_s:
            since_s = time.monotonic()
        if "calabash: " in tenant.text() or (tenant.says("held") and now_mib <= CAP_MIB):
            break
        time.sleep(0.005)
    beyond_s = time.monotonic() - since_s if since_s else 0.0
    user.vanish()
    return most, beyond_s


def measure_imitation(report: Report, world: HostileWorld, how: str) -> None:
    """Measure a program on an imitated slot."""
    unshare, script = IMITATIONS[how]
    command = f"{unshare} sh -ec '{script}' sh {world.program('hostile')} hold {WANTED_MIB}"
    found = []
    for _ in range(1 if report.quick else ROUNDS):
        user = world.user()
        tenant = user.runs("/bin/sh", "-c", command, environment=raised(), **SLICE)
        found.append(attack(world, user, tenant))
    report.add(f"had, {how}", max(mib for mib, _ in found), "MiB", at_most=CAP_MIB, detail="limit 2048 MiB, asked 8192")
    report.add(f"beyond the limit, {how}", max(s for _, s in found), "s")


def measure_past_the_library(report: Report, world: HostileWorld) -> None:
    """Measure a program without the library: nothing refuses it, the driver's lists show it."""
    found = []
    for _ in range(1 if report.quick else ROUNDS):
        user = world.user()
        tenant = user.runs(world.program("hostile"), "bare", str(WANTED_MIB), **SLICE)
        found.append(attack(world, user, tenant))
    report.add("had, past the library", max(mib for mib, _ in found), "MiB", detail="found from outside")
    times = [s for _, s in found]
    report.add(
        "ended after, past the library, median",
        statistics.median(times),
        "s",
        detail="patience of 1 s, a look each 0.4 s",
    )
    report.add("ended after, past the library, worst", max(times), "s")


def measure(report: Report) -> None:
    """Measure all; needs root, and a kernel that gives ordinary users namespaces."""
    world = HostileWorld("1xA100-40GB", neighbour=False)
    try:
        report.fact("card", "simulated A100-40GB")
        for how in (
            "a copy bound over it",
            "a copy with a control group namespace",
            "a copy at the path of containers",
        ):
            measure_imitation(report, world, how)
        measure_past_the_library(report, world)
    finally:
        world.close()


if __name__ == "__main__":
    run("slots", "Imitated slots", measure)
