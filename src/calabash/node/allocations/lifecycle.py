"""The life of an allocation as a table: what is seen -> the one next step.

Theory of operation. An allocation has two witnesses that survive a crash: its entry in the journal and its slot
directory; and one that the kernel keeps: whether any member of it lives (``membership``). The order of writing is fixed,

    grant     entry GRANTED  ->  slot
    release   slot removed   ->  entry RELEASED

so every combination of witnesses that a crash at any point can leave has exactly one meaning, and the next step
follows from what is seen and not from what was about to happen. The same function therefore serves the running pool
and a pool that starts again; repeating a step changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from calabash.model.allocation import AllocationState


class LifecycleStep(StrEnum):
    """What to do next; after every step but KEEP the witnesses are looked at again."""

    KEEP = "keep"
    MARK_RUNNING = "mark_running"
    END_PROGRAMS = "end_programs"
    REMOVE_SLOT = "remove_slot"
    CLOSE_ENTRY = "close_entry"
    FORGET = "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The witnesses.

    Args:
        entry: state in the journal; None when it has no entry.
        slot: the directory exists.
        in_use: a member lives, or a device still lists one.
        awaited: somebody may still come and take what was granted, or take it again.
        ending: its end was asked for.
    """

    entry: AllocationState | None
    slot: bool
    in_use: bool = False
    awaited: bool = False
    ending: bool = False


def next_step(seen: Seen) -> LifecycleStep:
    """The one step that follows from the witnesses."""
    entered = seen.entry in {AllocationState.GRANTED, AllocationState.RUNNING}
    if not seen.slot:
        if seen.in_use and entered:
            return LifecycleStep.END_PROGRAMS  # its limits are gone, so nothing keeps it to them
        return LifecycleStep.CLOSE_ENTRY if entered else LifecycleStep.FORGET
    if seen.in_use:
        if seen.ending and entered:
            return LifecycleStep.END_PROGRAMS
        # A slot without an entry but with users is an orphan: it keeps its devices until the users are gone.
        return LifecycleStep.MARK_RUNNING if seen.entry is AllocationState.GRANTED else LifecycleStep.KEEP
    if entered and seen.awaited and not seen.ending:
        return LifecycleStep.KEEP
    return LifecycleStep.REMOVE_SLOT
