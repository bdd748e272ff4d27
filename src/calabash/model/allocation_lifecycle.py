"""Life cycle of a journalled allocation: states, events, and the table of transitions (pure).

``node.allocations.lifecycle`` decides from the observed state which event is due. The journal writes a state only over one
from which the table leads to it.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any

from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.state_machine import StateMachine, leads_to


class AllocationEvent(StrEnum):
    """Event in the life of an allocation, described in ``EVENTS``."""

    USED = "used"
    SLOT_REMOVED = "slot_removed"


STATES = {
    AllocationState.GRANTED: "the devices are held and the limits page is written; no member process was seen yet",
    AllocationState.RUNNING: "a member process was seen, which may have ended since",
    AllocationState.RELEASED: "the slot is deleted and the devices are free",
}

EVENTS = {
    AllocationEvent.USED: "the first member process was seen",
    AllocationEvent.SLOT_REMOVED: "no member process is left, the last usage is recorded, and the slot was removed",
}

ALLOCATION_LIFECYCLE: StateMachine[AllocationState, AllocationEvent] = StateMachine(
    name="allocation",
    summary=(
        "The state of an allocation is stored in the journal of the pool or node agent, which continues with it after a"
        " restart."
    ),
    initial=AllocationState.GRANTED,
    ended=frozenset((AllocationState.RELEASED,)),
    stages=STATES,
    events=EVENTS,
    table={
        (AllocationState.GRANTED, AllocationEvent.USED): AllocationState.RUNNING,
        **leads_to(
            AllocationState.RELEASED, AllocationEvent.SLOT_REMOVED, (AllocationState.GRANTED, AllocationState.RUNNING)
        ),
    },
)


def advanced(record: AllocationRecord, event: AllocationEvent, **changes: Any) -> AllocationRecord:
    """Return the record after the event, with the given changes of other fields.

    Raises:
        UnlistedTransitionError: the table has no entry for the record's state and this event.
    """
    state = ALLOCATION_LIFECYCLE.following(record.state, event, name=record.id)
    return replace(record, state=state, **changes)
