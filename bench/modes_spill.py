"""Memory beyond the card: two programs of 70 % of a card each, together against one after the other.

Each reads all of its memory again and again. Together they spill: the arbiter gives them shifts that are long beside the
time that their pages take over the card's link. The same without an arbiter shows the cost of switches every few milliseconds.
"""

from __future__ import annotations

import time
from typing import Any

from bench._lab import KERNELS, Lab, Tenant
from bench._report import Report, run
from calabash.model.request import ComputePolicy

PART = 0.70
PROMISED = 0.495
PIECE_MIB = 128
RATIO_AT_MOST = 1.6
CONTEXT_MIB = 512


def _finish(tenants: list[Tenant]) -> list[dict[str, Any]]:
    for tenant in tenants:
        assert tenant.process.stdin is not None
        tenant.process.stdin.write(b"go\n")
        tenant.process.stdin.flush()
    return [tenant.result() for tenant in tenants]


def _tenant(lab: Lab, slot: str, pieces: int, sweeps: int) -> Tenant:
    tenant = lab.start(slot, "sweeper", KERNELS, pieces, PIECE_MIB, sweeps)
    tenant.wait_ready()
    return tenant


def _slots(lab: Lab, card_mib: int) -> int:
    """Make two slots of 70 % of the card with less than half of it promised; return the pieces of memory for one program."""
    memory_mib = int(PART * card_mib)
    for name in ("a", "b"):
        lab.slot(
            name,
            core_percent=50,
            policy=ComputePolicy.BURST,
            memory_limit_bytes=memory_mib << 20,
            spill_bytes=(memory_mib - int(PROMISED * card_mib)) << 20,
        )
    return (memory_mib - CONTEXT_MIB) // PIECE_MIB


def measure_spill(report: Report) -> None:
    """Measure the seconds until both programs are done."""
    sweeps = 60 if report.quick else 400
    with Lab(gpus="T4") as lab:
        card_mib = 14_800 if lab.node is not None else 0
        if not card_mib:
            report.fact("spill", "left out: a real card's memory is not this bench's to fill")
            return
        pieces = _slots(lab, card_mib)
        lab.keeper("a", "b")
        alone = [_finish([_tenant(lab, name, pieces, sweeps)])[0]["seconds"] for name in ("a", "b")]
        began = time.monotonic()
        both = _finish([_tenant(lab, name, pieces, sweeps) for name in ("a", "b")])
        wall = time.monotonic() - began
    together = (max(b["ended_ns"] for b in both) - min(b["began_ns"] for b in both)) / 1e9
    after_another = sum(alone)
    detail = f"{together:.1f} s, one after the other {after_another:.1f} s; {pieces * PIECE_MIB} of {card_mib} MiB each"
    report.add("spill: two of 70 %, together", together / after_another, "times", at_most=RATIO_AT_MOST, detail=detail)
    report.add("spill: the first to finish", min(b["seconds"] for b in both), "s", detail=f"{wall:.1f} s with starts")
    few = max(2, sweeps // 60)
    with Lab(gpus="T4", arbiter=False) as lab:
        pieces = _slots(lab, card_mib)
        both = _finish([_tenant(lab, name, pieces, few) for name in ("a", "b")])
    thrashing = (max(b["ended_ns"] for b in both) - min(b["began_ns"] for b in both)) / 1e9
    ratio = thrashing / (after_another * few / sweeps)
    report.add("spill: the same in turns of milliseconds", ratio, "times", detail=f"{few} sweeps, no arbiter")


if __name__ == "__main__":
    run("modes_spill", "Memory beyond the card", measure_spill)
