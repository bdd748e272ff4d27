"""Recovery from kills: thousands of SIGKILLs at random points of programs that allocate and launch as fast as they can.

Victims of one container are killed between a moment after exec and some tens of milliseconds later: while the library
starts, between a reservation and the driver's answer, while they wait at the gate. Two peers of the same container work
all the while. Afterwards nothing may be left: no byte in the ledger or on the card, no peer that stands still, no
process entry. The agent's part (reaping dead processes) runs as in production.
"""

from __future__ import annotations

import os
import random
import statistics
import time

from bench._lab import KERNELS, Lab, Tenant
from bench._report import Report, run

GIB = 1 << 30
CAP_BYTES = 16 * GIB
RECOVERY_MS = 1_000.0  # set by the interval at which the agent reaps, not by the speed of the machine
SECONDS_MAX = 100_000


def _victims(lab: Lab, kills: int, rng: random.Random, parallel: int) -> None:
    """Start and kill victims; half of them launch kernels, half allocate memory."""
    waiting: list[tuple[float, Tenant]] = []
    started = 0
    while started < kills or waiting:
        while started < kills and len(waiting) < parallel:
            if started % 2:
                victim = lab.start(
                    "victim", "gpuload", "--kernels", KERNELS, "--kernel-us", 200, "--seconds", SECONDS_MAX
                )
            else:
                victim = lab.start("victim", "hammer", "--seconds", SECONDS_MAX, "--largest-mib", 64)
            waiting.append((time.monotonic() + rng.random() ** 2 * 0.04, victim))
            started += 1
        at, victim = min(waiting, key=lambda item: item[0])
        time.sleep(max(0.0, at - time.monotonic()))
        victim.kill()
        lab.remove_tenant(victim)
        waiting.remove((at, victim))


def measure_kills(report: Report, lab: Lab) -> None:
    """Measure what many kills leave behind."""
    kills = 400 if report.quick else 10_000
    lab.slot("victim", core_percent=60, memory_limit_bytes=CAP_BYTES)
    lab.keeper("victim")
    peers = [
        lab.load("victim", "--kernel-us", 500, "--seconds", SECONDS_MAX),
        lab.start("victim", "hammer", "--seconds", SECONDS_MAX, "--largest-mib", 32, "--hold-mib", 256),
    ]
    peers[1].wait_ready()
    usage = lab.usage("victim")
    began = time.monotonic()
    _victims(lab, kills, random.Random(42), 4)
    report.add("processes killed", kills, "kills", detail=f"{kills / (time.monotonic() - began):.0f} per second")
    before = {tenant.pid: lab.busy_ns()[1].get(tenant.pid, 0) for tenant in peers[:1]}
    counts = lab.card_state().devices[0].alloc_count, usage.device(0).launch_count
    time.sleep(1.0)
    after = lab.busy_ns()[1]
    stuck = int(after.get(peers[0].pid, 0) - before[peers[0].pid] < 100_000_000)
    stuck += int(lab.card_state().devices[0].alloc_count == counts[0])
    detail = "peers that made no progress in the second after"
    report.add("stuck peers", stuck, "peers", at_most=0, detail=detail)
    for peer in peers:
        peer.kill()
    deadline = time.monotonic() + 5
    while (usage.device(0).used_bytes or usage.procs()) and time.monotonic() < deadline:
        time.sleep(0.01)
    card = lab.card_state().devices[0]
    report.add("leaked in the ledger", usage.device(0).used_bytes / (1 << 20), "MiB", at_most=0)
    report.add("leaked on the card", card.alloc_bytes / (1 << 20), "MiB", at_most=0)
    report.add("process slots left behind", len(usage.procs()), "slots", at_most=0)
    report.add("work in flight left behind", usage.device(0).inflight_ns / 1e6, "ms", at_most=0)
    # The simulated card frees memory of dead processes at the next query, so the ledger's own peak is used here.
    over = max(0, usage.device(0).peak_bytes - CAP_BYTES)
    report.add("over the cap during the storm, by the ledger", over, "bytes", at_most=0)
    lab.drop_slot("victim")


def measure_time(report: Report, lab: Lab) -> None:
    """Measure the time from the SIGKILL of a process that holds the whole limit until another one could have it."""
    lab.slot("holder", policy=None, memory_limit_bytes=4 * GIB)
    lab.keeper("holder")
    usage = lab.usage("holder")
    times = []
    for _ in range(5 if report.quick else 40):
        holder = lab.start("holder", "hammer", "--seconds", SECONDS_MAX, "--largest-mib", 512)
        holder.wait_ready()
        time.sleep(0.05)
        began = time.monotonic()
        holder.process.kill()
        while usage.device(0).used_bytes and time.monotonic() - began < 10:
            time.sleep(0.001)
        times.append((time.monotonic() - began) * 1000)
        holder.kill()
        lab.remove_tenant(holder)
    detail = f"of {len(times)}; set by the interval at which the agent reaps, here 100 ms"
    report.add("time to recovery, median", statistics.median(times), "ms", at_most=RECOVERY_MS, detail=detail)
    report.add("time to recovery, worst", max(times), "ms", at_most=RECOVERY_MS, detail=detail)


def measure_refused(report: Report, lab: Lab) -> None:
    """Measure a process that needs the memory of a killed sibling and asks at the moment of the sibling's end."""
    lab.slot("family", policy=None, memory_limit_bytes=4 * GIB)
    keeper = lab.keeper("family")
    probe = lab.start("family", "hammer", "--seconds", 1, "--largest-mib", 1)
    probe.wait_ready()
    context = next(process.devices[0].context_bytes for process in lab.card_state().processes)
    keeper.learn_context(lab.card_state().devices[0].name, context)
    probe.result()
    asked = refused = 0
    longest_ms = 0.0
    for _ in range(20 if report.quick else 200):
        sibling = lab.start("family", "hammer", "--seconds", SECONDS_MAX, "--largest-mib", 16, "--hold-mib", 2 * 1024)
        sibling.wait_ready()
        survivor = lab.start("family", "hammer", "--gate", "--fill")
        survivor.wait_ready()
        sibling.process.kill()
        os.waitid(os.P_PID, sibling.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
        began = time.monotonic()
        survivor.go()
        most = survivor.result()["most_bytes"]
        longest_ms = max(longest_ms, (time.monotonic() - began) * 1000)
        asked += 1
        refused += int(most < 0.99 * (4 * GIB - context))
        sibling.kill()
        lab.remove_tenant(sibling)
        lab.remove_tenant(survivor)
    detail = f"of {asked} that took the whole cap, at most {longest_ms:.0f} ms to fill it"
    report.add("survivors refused what a killed sibling held", refused, "programs", at_most=0, detail=detail)
    lab.drop_slot("family")


def measure(report: Report) -> None:
    """Measure all; does nothing on a real card, because it reads the simulator's accounts."""
    with Lab(gpus="A100-80GB") as lab:
        report.fact("card", "real" if lab.real else "simulated A100-80GB")
        if lab.real:
            report.fact("kills", "left out: the truth about leaks is the simulator's count")
            return
        measure_kills(report, lab)
        measure_time(report, lab)
        measure_refused(report, lab)


if __name__ == "__main__":
    run("recovery", "Recovery from SIGKILL anywhere", measure)
