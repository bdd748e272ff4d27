"""Life cycle of a lease of a server: stages, events, and the table of transitions (pure)."""

from __future__ import annotations

from enum import StrEnum

from calabash.model.state_machine import StateMachine


class LeaseStage(StrEnum):
    """Stage of a lease, described in ``STAGES``."""

    REQUESTED = "requested"
    HELD = "held"
    RELEASING = "releasing"
    ENDED = "ended"


class LeaseEvent(StrEnum):
    """Event in the life of a lease, described in ``EVENTS``."""

    GRANTED = "granted"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    OVER = "over"
    TAKEN_BACK = "taken_back"
    RELEASED = "released"


STAGES = {
    LeaseStage.REQUESTED: "the server waits for the allocation of the pool; the amounts count as held by the token",
    LeaseStage.HELD: "the client may use the allocation, and renews the lease",
    LeaseStage.RELEASING: "the lease is over, and the pool has not confirmed the release of its allocation yet",
    LeaseStage.ENDED: "the lease has no allocation any more",
}

EVENTS = {
    LeaseEvent.GRANTED: "the pool has granted the allocation",
    LeaseEvent.REFUSED: "the pool has refused the request, or the client has withdrawn it",
    LeaseEvent.ABANDONED: "the pool has granted an allocation that no client gets, or that a restarted server does not know",
    LeaseEvent.OVER: "the lease was given back or not renewed, its token has ended, or the server stops",
    LeaseEvent.TAKEN_BACK: "the pool has ended the allocation",
    LeaseEvent.RELEASED: "the pool has released the allocation",
}

LEASE_LIFECYCLE: StateMachine[LeaseStage, LeaseEvent] = StateMachine(
    name="lease",
    summary=(
        "A lease of a server of remote devices is one allocation of the server's pool. Held leases are stored in the"
        " journal of the server, which continues with them after a restart."
    ),
    initial=LeaseStage.REQUESTED,
    ended=frozenset((LeaseStage.ENDED,)),
    stages=STAGES,
    events=EVENTS,
    table={
        (LeaseStage.REQUESTED, LeaseEvent.GRANTED): LeaseStage.HELD,
        (LeaseStage.REQUESTED, LeaseEvent.REFUSED): LeaseStage.ENDED,
        (LeaseStage.REQUESTED, LeaseEvent.ABANDONED): LeaseStage.RELEASING,
        (LeaseStage.HELD, LeaseEvent.OVER): LeaseStage.RELEASING,
        (LeaseStage.HELD, LeaseEvent.TAKEN_BACK): LeaseStage.ENDED,
        (LeaseStage.RELEASING, LeaseEvent.RELEASED): LeaseStage.ENDED,
    },
)
