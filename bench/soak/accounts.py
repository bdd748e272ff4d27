"""Check that every run is accounted exactly once, for the time that it was seen to run. Pure.

``rows`` are the intervals of ``usage``; they are compared with the times that the starter of the run saw with its own clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bench.soak.diary import Fault, Run

Json = Mapping[str, Any]
EARLY_S = 1.0  # a program reports its start after it was granted; clocks of one machine, rounded
LATE_S = 10.0  # from the end of the last process until the pool knows that the card is free, on a machine under load
AWAY = ("pool killed", "pool restarted", "pool stopped", "disk full")
_ROUND_S = (
    0.5  # a pool notes ten times a second what it holds: what began after its last note is not known to have lived
)
_SAME_S = 1e-3


def by_slice(rows: Iterable[Json]) -> dict[tuple[str, str], list[Json]]:
    """Return the rows of each allocation and device, in their order."""
    found: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for row in rows:
        found[row["allocation"], row["device"]].append(row)
    return {key: sorted(own, key=lambda row: row["sequence"]) for key, own in found.items()}


def broken_chains(slices: Mapping[tuple[str, str], Sequence[Json]]) -> list[str]:
    """Return intervals that are missing, doubled or overlapping, or that claim more time than they have."""
    found: list[str] = []
    numbers: dict[str, list[int]] = defaultdict(list)
    for (allocation, _), rows in slices.items():
        numbers[allocation] += [row["sequence"] for row in rows]
        for before, after in pairwise(rows):
            if abs(after["from_s"] - before["to_s"]) > _SAME_S:
                found.append(f"{allocation}: {after['from_s'] - before['to_s']:+.3f} s between two of its intervals")
        for row in rows:
            length_s = row["to_s"] - row["from_s"]
            if length_s < 0 or row["allocated_gpu_s"] > length_s + _SAME_S or row["used_gpu_s"] < 0:
                found.append(f"{allocation}: {row['allocated_gpu_s']} GPU s in an interval of {length_s} s")
    for allocation, own in numbers.items():
        if sorted(own) != list(range(len(own))):
            found.append(f"{allocation}: intervals are numbered {sorted(own)}")
    return found


def misjudged(
    run: Run, record: Json, slices: Mapping[tuple[str, str], Sequence[Json]], faults: Sequence[Fault]
) -> list[str]:
    """Return the errors in the account of a run that began and has ended, whose allocation is ``record``."""
    found: list[str] = []
    away = [f for f in faults if f.kind in AWAY and f.meets(run.asked_at, run.ended_at, after_s=LATE_S)]
    late_s = LATE_S + sum(min(f.until, run.ended_at + LATE_S) - f.at for f in away)
    for part in record["slices"]:
        rows = slices.get((record["id"], part["device"]), ())
        if not rows and any(fault.at <= run.began_at + _ROUND_S for fault in away):
            continue
        if not rows:
            found.append(f"{run.tag}: no interval of {record['id']} on device {part['device_index']}")
            continue
        from_s, to_s = rows[0]["from_s"], rows[-1]["to_s"]
        said = run.said.get("ended", run.ended_at)  # the waiting parent of the program may be stopped when it ends
        earliest = min([said, run.ended_at, *(f.at for f in away)])
        if not run.asked_at - EARLY_S <= from_s <= run.began_at + EARLY_S:
            found.append(f"{run.tag}: charged from {from_s - run.began_at:+.3f} s after it began")
        if not earliest - EARLY_S <= to_s <= run.ended_at + late_s:
            found.append(f"{run.tag}: charged until {to_s - run.ended_at:+.3f} s after it ended")
    return found
