"""The memory cap under attack: 64 processes of one container allocate and free in every family as fast as they can.

*Over the cap* is the simulator's own peak of all allocations minus the cap; the figure with contexts counts what the
processes' contexts hold, too, with the agent's residuals published as in production. *Usable* is what one program gets
before its first out-of-memory. A second container on the same card must not notice.
"""

from __future__ import annotations

import itertools
import time

from bench._lab import Lab
from bench._report import Report, run

GIB = 1 << 30
CAP_BYTES = 60 * GIB
PROCESSES = 64
USABLE_PERCENT = 99.5


def measure_usable(report: Report, lab: Lab) -> None:
    """How much of the cap a single program can have."""
    for gib in (1, 8, 39):
        name = f"fill{gib}"
        lab.slot(name, policy=None, memory_limit_bytes=gib * GIB)
        tenant = lab.start(name, "hammer", "--fill")
        tenant.wait_ready()
        result = tenant.result()
        report.add(
            f"usable of a cap of {gib} GiB",
            result["most_bytes"] / (gib * GIB) * 100,
            "%",
            at_least=USABLE_PERCENT,
            detail=f"reported total {result['total'] / GIB:.2f} GiB",
        )
        lab.drop_slot(name)


def measure_attack(report: Report, lab: Lab) -> None:
    """64 processes at once, with the agent looking after residuals."""
    seconds = 5 if report.quick else 20
    slot = lab.slot("attacked", policy=None, memory_limit_bytes=CAP_BYTES)
    assert slot.is_dir()
    card = lab.books().devices[0]
    keeper = lab.keeper("attacked")
    probe = lab.start("attacked", "hammer", "--seconds", 1, "--largest-mib", 1)
    probe.wait_ready()
    context = next(process.devices[0].context_bytes for process in lab.books().processes)
    keeper.learn_context(card.name, context)
    probe.result()
    tenants = [
        lab.start("attacked", "hammer", "--gate", "--seconds", seconds, "--largest-mib", 700, "--seed", 7 * i + 1)
        for i in range(PROCESSES)
    ]
    for tenant in tenants:
        tenant.wait_ready()
    for tenant in tenants:
        tenant.go()
    results = [tenant.result(timeout_s=seconds * 6 + 60) for tenant in tenants]
    card = lab.books().devices[0]
    report.add(
        f"over the cap, {PROCESSES} processes, all families",
        max(0, card.alloc_peak_bytes - CAP_BYTES),
        "bytes",
        at_most=0,
        detail=f"peak {card.alloc_peak_bytes / GIB:.3f} of {CAP_BYTES / GIB:.0f} GiB",
    )
    over = max(0, card.used_peak_bytes - CAP_BYTES) / (1 << 20)
    report.add("over the cap with contexts, at worst", over, "MiB", at_most=64, detail=f"{context >> 20} MiB each")
    report.add("allocations granted", sum(r["granted"] for r in results), "calls")
    report.add("allocations refused", sum(r["denied"] for r in results), "calls", at_least=1)
    report.add("other errors", sum(r["failed"] for r in results), "calls", at_most=0)
    for family in ("linear", "pitched", "managed", "async", "physical", "array"):
        report.add(f"granted, {family}", sum(r[family] for r in results), "calls", at_least=1)
    usage = lab.usage("attacked")
    deadline = time.monotonic() + 5
    while usage.device(0).used_bytes and time.monotonic() < deadline:
        time.sleep(0.02)
    report.add("left in the ledger afterwards", usage.device(0).used_bytes, "bytes", at_most=0)
    report.add("left on the card afterwards", lab.books().devices[0].alloc_bytes, "bytes", at_most=0)


def measure_neighbour(report: Report, lab: Lab) -> None:
    """A container next door is refused nothing that it may have."""
    for name in ("noisy", "quiet"):
        lab.slot(name, policy=None, memory_limit_bytes=16 * GIB)
    noisy = [lab.start("noisy", "hammer", "--seconds", 3, "--largest-mib", 512) for _ in range(8)]
    quiet = lab.start("quiet", "hammer", "--seconds", 2, "--largest-mib", 512, "--hold-mib", 14 * 1024)
    for tenant in itertools.chain(noisy, [quiet]):
        tenant.wait_ready()
    result = quiet.result()
    for tenant in noisy:
        tenant.result()
    report.add("refusals of a neighbour within its cap", result["denied"] + result["failed"], "calls", at_most=0)


def measure(report: Report) -> None:
    """All of it; on a real card the part that needs the simulator's books stands aside."""
    with Lab(gpus="A100-80GB", arbiter=False) as lab:
        report.fact("card", "real" if lab.real else "simulated A100-80GB")
        measure_usable(report, lab)
        if lab.real:
            report.fact("attack", "left out: its truth is the simulator's count")
            return
        measure_attack(report, lab)
        measure_neighbour(report, lab)


if __name__ == "__main__":
    run("memory", "The memory cap under attack", measure)
