"""Check that every run ended as its user was told: each ending has a reason, or it is a violation. Pure.

A run that never began was refused, with a line that says why; the absence of the pool is a reason only during a fault that
stopped it. A program that began ends by itself, unless it, its card or a process that it depends on was harmed on purpose, or
the journal says that its slice was taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.soak.diary import STARVED, Fault, Run
from bench.soak.program import FAILED
from calabash.binder.local.binder import LOST_PLACE as LOST_PLACE_TEMPLATE
from calabash.sharing.brokered import MODE as BROKERED

Json = Mapping[str, Any]
AWAY = ("pool killed", "pool restarted", "pool stopped", "disk full", STARVED)
LEANT_ON = {
    "mps": ("mps killed",),
    "brokered": ("worker killed", "broker killed"),
    "": ("broker killed", "worker killed"),
}
TAKEN_BACK = {
    "reclaim",
    "preempt",
    "drained",
    "run_time",
    "over_use",
    "released",
    "unhealthy",
    "moved",
    "idle",
    "device",
}
LOST_PLACE = LOST_PLACE_TEMPLATE.partition("{")[0]
SOON_S = 20.0  # effects of a fault show up within this time after it


def unexplained(run: Run, record: Json | None, faults: Sequence[Fault]) -> str:
    """Return the error in the ending of a run, empty if there is none. ``record``: its allocation in the journal."""
    if run.code is None:
        return "has not ended"
    if run.harmed:
        return ""
    if not run.began and not _signalled(run):
        return _refused(run, record, faults)
    if run.code == 0:
        return "" if "ended" in run.said else f"ended with 0 in the middle: {run.output[-300:]!r}"
    if _harmed(run, record, faults):
        return ""
    why = f"reason {record['reason']!r} ({record['explanation']})" if record is not None else "not in the journal"
    ended = "a call failed" if run.code == FAILED else f"ended with {run.code}"
    return f"{ended}, and nobody had harmed it; {why}: {run.output[-300:]!r}"


def reported_grants(records: Sequence[Json]) -> list[Json]:
    """Return the grants that were reported to a user.

    A grant that could not be prepared, as on a card that was lost meanwhile, is granted again elsewhere: under another ID, or
    under the same one; then the journal renames the old record.
    """
    return [r for r in records if "~" not in r["id"] and not r["explanation"].startswith(LOST_PLACE)]


def begun_unreported(records: Sequence[Json]) -> list[str]:
    """Return grants whose programs began though they were not reported to a user. A worker begins before the report."""
    names = {record["id"] for record in reported_grants(records)}
    return [r["id"] for r in records if r["id"] not in names and r["started_at"] and r["mode"] != BROKERED.name]


def _signalled(run: Run) -> bool:
    """Return True if a signal ended the run; with ports, the pool reports it by a number, as shells do."""
    return run.code is not None and (run.code < 0 or ("--port" in run.words and run.code > 128))


def _harmed(run: Run, record: Json | None, faults: Sequence[Fault]) -> bool:
    """Return True if the run's slice was taken back, its card was broken, or a process that it depends on was killed."""
    near = [f for f in faults if f.meets(run.began_at or run.asked_at, run.ended_at, after_s=SOON_S)]
    if record is None:
        return any(
            f.kind in LEANT_ON[""] or f.device >= 0 for f in near
        )  # a reservation, whose cards are not known here
    devices = {part["device_index"] for part in record["slices"]}
    leant = LEANT_ON.get(record["mode"], ())
    return record["reason"] in TAKEN_BACK or any(f.device in devices or f.kind in leant for f in near)


def _refused(run: Run, record: Json | None, faults: Sequence[Fault]) -> str:
    lines = run.output.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if "Traceback" in run.output:
        return f"told its user a traceback: {run.output[-600:]!r}"
    if not errors:
        return f"ended with {run.code} and told its user nothing: {run.output[-300:]!r}"
    reserved = (
        run.remote and record is not None and record["reason"] in TAKEN_BACK
    )  # the devices for it were taken back
    if reserved or (run.code == 6 and errors[-1].startswith("error: no room within")):
        return ""
    if run.code == 5:
        return "" if any(line.startswith("hint: ") for line in lines) else f"refused without a hint: {errors[-1]!r}"
    away = any(f.kind in AWAY for f in faults if f.meets(run.asked_at, run.ended_at, after_s=SOON_S))
    leant = run.remote and any(
        f.kind in LEANT_ON[""] for f in faults if f.meets(run.asked_at, run.ended_at, after_s=SOON_S)
    )
    if away or leant:
        return ""
    return f"ended with {run.code} while nothing was away: {errors[-1]!r}"
