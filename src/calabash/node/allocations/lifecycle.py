"""Life cycle of an allocation: a table from observed state to the next step (pure).

Theory of operation. The state of an allocation is in three places that survive a crash of the agent: its entry in the
journal, its slot directory, and the kernel, which knows if a member process lives (``membership``). The order of writes
is fixed:

    grant     entry GRANTED  ->  slot
    release   slot removed   ->  entry RELEASED

So each combination that a crash can leave has exactly one meaning, and the next step follows from the observed state.
The running agent and an agent that has just started use the same function. Repeating a step changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from calabash.model.allocation import AllocationState


class LifecycleStep(StrEnum):
    """Next step for an allocation. After every step except KEEP, the state is observed again.

    CLOSE_ENTRY writes RELEASED to the journal. FORGET drops the state in memory of an allocation without a journal
    entry.
    """

    KEEP = "keep"
    MARK_RUNNING = "mark_running"
    END_PROGRAMS = "end_programs"
    REMOVE_SLOT = "remove_slot"
    CLOSE_ENTRY = "close_entry"
    FORGET = "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """State of an allocation as it is observed on the node.

    Args:
        entry: state in the journal; None if there is no entry.
        slot: the slot directory exists.
        in_use: a member process lives, or a driver still lists one on a device.
        awaited: no member process is needed yet: a process may still become the first member, or a member again.
        ending: the end of the allocation was requested.
    """

    entry: AllocationState | None
    slot: bool
    in_use: bool = False
    awaited: bool = False
    ending: bool = False


def next_step(seen: Witnesses) -> LifecycleStep:
    """Return the step that follows from the observed state."""
    entered = seen.entry in {AllocationState.GRANTED, AllocationState.RUNNING}
    if not seen.slot:
        if seen.in_use and entered:
            return LifecycleStep.END_PROGRAMS  # without its slot its limits are not enforced
        return LifecycleStep.CLOSE_ENTRY if entered else LifecycleStep.FORGET
    if seen.in_use:
        if seen.ending and entered:
            return LifecycleStep.END_PROGRAMS
        # A slot without an entry but with member processes is an orphan: it keeps its devices until they have ended.
        return LifecycleStep.MARK_RUNNING if seen.entry is AllocationState.GRANTED else LifecycleStep.KEEP
    if entered and seen.awaited and not seen.ending:
        return LifecycleStep.KEEP
    return LifecycleStep.REMOVE_SLOT
