"""Life cycle of a move: stages, events, and the table of transitions. ``decide.relocations`` has the theory."""

from __future__ import annotations

from enum import StrEnum

from calabash.model.state_machine import StateMachine, leads_to


class MoveStage(StrEnum):
    """Stage of a move, described in ``STAGES``."""

    REQUESTED = "requested"
    TERMINATING = "terminating"
    DELETED = "deleted"
    UNRESERVED = "unreserved"
    ENDED = "ended"


class MoveEvent(StrEnum):
    """Event in a move, described in ``EVENTS``."""

    POD_TERMINATES = "pod_terminates"
    POD_DELETED = "pod_deleted"
    REPLACED = "replaced"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    EVICTION_REFUSED = "eviction_refused"


STAGES = {
    MoveStage.REQUESTED: "the eviction of the pod was requested, and its new placement is reserved",
    MoveStage.TERMINATING: "the pod terminates; a replacement pod gets the reservation",
    MoveStage.DELETED: "the pod is deleted; a replacement pod gets the reservation within a time limit",
    MoveStage.UNRESERVED: "the reservation was used or cancelled, and the pod is not deleted yet",
    MoveStage.ENDED: "the pod is deleted or its time limit is over, and nothing is reserved",
}

EVENTS = {
    MoveEvent.POD_TERMINATES: "the API server shows that the moved pod terminates",
    MoveEvent.POD_DELETED: "the moved pod is deleted",
    MoveEvent.REPLACED: "a replacement pod was given the reservation",
    MoveEvent.CANCELLED: "the reserved devices were lost",
    MoveEvent.TIMED_OUT: "the time limit of the move is over",
    MoveEvent.EVICTION_REFUSED: "a disruption budget refuses the eviction",
}

REPLACEABLE = frozenset((MoveStage.TERMINATING, MoveStage.DELETED))
_EXISTING = (MoveStage.REQUESTED, MoveStage.TERMINATING)
_IN_PROGRESS = (*_EXISTING, MoveStage.DELETED, MoveStage.UNRESERVED)

MOVE_LIFECYCLE: StateMachine[MoveStage, MoveEvent] = StateMachine(
    name="move",
    summary=(
        "A pod is moved by evicting it while its new placement is reserved for the replacement pod. Moves are not stored:"
        " after a change of the leader no move is in progress."
    ),
    initial=MoveStage.REQUESTED,
    ended=frozenset((MoveStage.ENDED,)),
    stages=STAGES,
    events=EVENTS,
    table={
        (MoveStage.REQUESTED, MoveEvent.POD_TERMINATES): MoveStage.TERMINATING,
        **leads_to(MoveStage.DELETED, MoveEvent.POD_DELETED, (*_EXISTING, MoveStage.DELETED)),
        (MoveStage.UNRESERVED, MoveEvent.POD_DELETED): MoveStage.ENDED,
        (MoveStage.TERMINATING, MoveEvent.REPLACED): MoveStage.UNRESERVED,
        (MoveStage.DELETED, MoveEvent.REPLACED): MoveStage.ENDED,
        **leads_to(MoveStage.UNRESERVED, MoveEvent.CANCELLED, _EXISTING),
        (MoveStage.DELETED, MoveEvent.CANCELLED): MoveStage.ENDED,
        **leads_to(MoveStage.ENDED, MoveEvent.TIMED_OUT, _IN_PROGRESS),
        **leads_to(MoveStage.ENDED, MoveEvent.EVICTION_REFUSED, _IN_PROGRESS),
    },
)
