"""Health of a device as a table: (state, event) -> (state, actions). Pure; the agent feeds events and acts.

Theory of operation. Only HEALTHY takes new work. What a driver reports falls in three classes: ``APP`` (the program
that caused it is at fault, the card is fine), ``RESET`` (the card needs to be emptied and probed before it is trusted
again) and ``FATAL`` (the card does not answer). A card recovers by itself when it answers again, is idle where its
memory could be damaged, and a probe passes; nobody has to restart anything.

    HEALTHY ── missed ──> SUSPECT ── answered ──> RECOVERING ── probe passed ──> HEALTHY
       │ reset, ecc          │ missed                ^   │ probe failed: stays, probed again
       v                     v                       │   v
    DRAINING ── idle ──> RECOVERING             LOST ┘  (answered)

XID numbers and their meaning: NVIDIA, "XID errors" (docs.nvidia.com/deploy/xid-errors), classes by our own judgement
of its "recovery action" column.
"""

from __future__ import annotations

from enum import StrEnum

from calabash.model.device import Health


class HealthEvent(StrEnum):
    """What can happen to a device, seen from its agent."""

    APP_FAULT = "app_fault"
    NEEDS_RESET = "needs_reset"
    ECC_DOUBLE_BIT = "ecc_double_bit"
    GONE = "gone"
    MISSED = "missed"
    ANSWERED = "answered"
    IDLE = "idle"
    PROBE_PASSED = "probe_passed"
    PROBE_FAILED = "probe_failed"


class HealthAction(StrEnum):
    """What the agent then does."""

    RECORD = "record"  # an event for people, nothing else
    TELL = "tell"  # tell everybody who runs on it
    PROBE = "probe"  # try it


_FATAL_XIDS = frozenset({79})  # fallen off the bus
_RESET_XIDS = frozenset(
    {46, 54, 61, 62, 109, 110, 119, 120, 123, 136, 143}  # stopped processing, power, firmware, start-up
    | {48, 63, 64, 92, 95, 140}  # memory: double bit, remapping, rate, uncontained, unrecovered
    | {74, 121, *range(144, 152)}  # links
    | {154}  # the driver itself asks for a recovery action
)


def xid_event(code: int) -> HealthEvent:
    """The class of an XID; numbers we do not know are the program's fault until the card stops answering."""
    if code in _FATAL_XIDS:
        return HealthEvent.GONE
    if code in _RESET_XIDS:
        return HealthEvent.NEEDS_RESET
    return HealthEvent.APP_FAULT


_Answer = tuple[Health, tuple[HealthAction, ...]]
_H, _E, _A = Health, HealthEvent, HealthAction
_TELL = (_A.RECORD, _A.TELL)

_TABLE: dict[tuple[Health, HealthEvent], _Answer] = {
    (_H.HEALTHY, _E.APP_FAULT): (_H.HEALTHY, (_A.RECORD,)),
    (_H.HEALTHY, _E.NEEDS_RESET): (_H.DRAINING, _TELL),
    (_H.HEALTHY, _E.ECC_DOUBLE_BIT): (_H.DRAINING, _TELL),
    (_H.HEALTHY, _E.GONE): (_H.LOST, _TELL),
    (_H.HEALTHY, _E.MISSED): (_H.SUSPECT, (_A.RECORD,)),
    (_H.SUSPECT, _E.NEEDS_RESET): (_H.DRAINING, _TELL),
    (_H.SUSPECT, _E.ECC_DOUBLE_BIT): (_H.DRAINING, _TELL),
    (_H.SUSPECT, _E.GONE): (_H.LOST, _TELL),
    (_H.SUSPECT, _E.MISSED): (_H.LOST, _TELL),
    (_H.SUSPECT, _E.ANSWERED): (_H.RECOVERING, (_A.PROBE,)),
    (_H.DRAINING, _E.GONE): (_H.LOST, _TELL),
    (_H.DRAINING, _E.MISSED): (_H.LOST, _TELL),
    (_H.DRAINING, _E.IDLE): (_H.RECOVERING, (_A.PROBE,)),
    (_H.RECOVERING, _E.NEEDS_RESET): (_H.DRAINING, _TELL),
    (_H.RECOVERING, _E.ECC_DOUBLE_BIT): (_H.DRAINING, _TELL),
    (_H.RECOVERING, _E.GONE): (_H.LOST, _TELL),
    (_H.RECOVERING, _E.MISSED): (_H.LOST, _TELL),
    (_H.RECOVERING, _E.ANSWERED): (_H.RECOVERING, (_A.PROBE,)),
    (_H.RECOVERING, _E.PROBE_PASSED): (_H.HEALTHY, (_A.RECORD,)),
    (_H.RECOVERING, _E.PROBE_FAILED): (_H.RECOVERING, ()),
    (_H.LOST, _E.ANSWERED): (_H.RECOVERING, (_A.RECORD, _A.PROBE)),
}


def decide(state: Health, event: HealthEvent) -> _Answer:
    """The next state and what to do; an event that means nothing in a state changes nothing."""
    return _TABLE.get((state, event), (state, ()))
