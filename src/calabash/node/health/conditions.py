"""State machine of the health of a card, a partition or a service (pure).

Theory of operation. The state is a set of facts (``HealthFacts``). An event changes facts, and ``health`` is computed
from the facts alone. So several faults at once need no additional states, and none hides another. Only a HEALTHY card
takes new work.

    LOST        the card does not answer, or it must be replaced
    DRAINING    it needs a reset and is in use, was drained by an administrator, or has failed too often
    SUSPECT     it missed one reading, or has a lasting condition with an outside cause: too hot, a link is down
    RECOVERING  it is being reset, must pass a test, or has to stay without fault for some time
    HEALTHY     none of these

A card recovers automatically as far as its need allows: NOTHING < TEST < RESET < OPERATOR. A reset leads to a test, and
no card becomes healthy again without one. A card that needs an OPERATOR stays out of service until ``UNDRAIN``.

Flapping, the repeated change between HEALTHY and other states, is damped. A card that has recovered must stay without
fault for a hold time before it is HEALTHY again. This time doubles with each time that the card leaves HEALTHY within a
time span. After too many times the card stays DRAINING until an administrator undrains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from calabash.model.device import Health


class Need(IntEnum):
    """Step that is needed before a card is trusted again; a larger one includes the smaller ones."""

    NOTHING = 0
    TEST = 1
    RESET = 2
    OPERATOR = 3


class HealthEvent(StrEnum):
    """Event that changes the health of a card, a partition or a service."""

    APP_FAULT = "app_fault"  # fault of a program; the card is not affected
    NEEDS_RESET = "needs_reset"
    NEEDS_REPLACE = "needs_replace"
    GONE = "gone"
    MISSED = "missed"
    ANSWERED = "answered"
    IDLE = "idle"
    IN_USE = "in_use"
    RESET_DONE = "reset_done"
    RESET_REFUSED = "reset_refused"
    TEST_PASSED = "test_passed"
    TEST_FAILED = "test_failed"
    HOLD_OVER = "hold_over"
    DRAIN = "drain"
    UNDRAIN = "undrain"


class HealthStep(StrEnum):
    """Step that the agent takes to recover a card."""

    RESET = "reset"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flapping:
    """Limits of flapping: ``most`` is how often a card may leave HEALTHY within ``window_s``.

    A card that leaves HEALTHY for the first time within the window is not held. After the second time it is held for
    ``hold_s``, then for twice as long each time, at most for ``hold_max_s``.
    """

    window_s: float = 3600.0
    most: int = 5
    hold_s: float = 10.0
    hold_max_s: float = 600.0

    def hold(self, times: int) -> float:
        """Return the hold time in seconds of a card that has left HEALTHY ``times`` times within the window."""
        if times < 2:
            return 0.0
        return min(self.hold_max_s, self.hold_s * 2.0 ** min(times - 2, 60))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """Facts about the health of a card, a partition or a service.

    Args:
        misses: consecutive readings that were not answered, counted up to 2.
        gone: the driver reports that the device is not present any more.
        need: step that is needed before it is trusted again.
        drained: an administrator has taken it out of service.
        standing: names of lasting conditions with an outside cause, such as heat.
        idle: no allocation uses it; kept only while it needs a reset.
        refused: a reset was tried and is not possible now.
        left_at: times within the window at which it left HEALTHY because of a fault, in seconds since 1970.
        hold_until_s: end of the hold time; 0: none.
        latched: it left HEALTHY too often, and stays out of service until an administrator undrains it.
    """

    misses: int = 0
    gone: bool = False
    need: Need = Need.NOTHING
    drained: bool = False
    standing: tuple[str, ...] = ()
    idle: bool = False
    refused: bool = False
    left_at: tuple[float, ...] = ()
    hold_until_s: float = 0.0
    latched: bool = False

    @property
    def health(self) -> Health:
        """Health state, computed from the facts."""
        if self.gone or self.misses >= 2 or self.need is Need.OPERATOR:
            return Health.LOST
        if self.drained or self.latched:
            return Health.DRAINING
        if self.need is Need.RESET:
            return Health.RECOVERING if self.idle and not self.refused else Health.DRAINING
        if self.misses or self.standing:
            return Health.SUSPECT
        if self.need is Need.TEST or self.hold_until_s:
            return Health.RECOVERING
        return Health.HEALTHY

    @property
    def step(self) -> HealthStep | None:
        """Recovery step to take now, if any; None for a drained card, as an administrator may work on it."""
        if self.gone or self.misses or self.drained:
            return None
        if self.need is Need.RESET and self.idle:
            return HealthStep.RESET
        if self.need is Need.TEST and not self.standing:
            return HealthStep.TEST
        return None


def decide(before: HealthFacts, event: HealthEvent, *, now_s: float, flapping: Flapping) -> HealthFacts:
    """Return the facts after an event."""
    if event is HealthEvent.TEST_PASSED:
        if before.need is not Need.TEST or before.misses or before.gone or before.standing:
            return before  # a fault since the test began needs a test of its own
        hold_s = flapping.hold(len(before.left_at))
        return replace(before, need=Need.NOTHING, hold_until_s=now_s + hold_s if hold_s else 0.0)
    return _damped(before, _CHANGES[event](before), now_s, flapping, by_itself=event is not HealthEvent.DRAIN)


def set_standing(before: HealthFacts, standing: tuple[str, ...], *, now_s: float, flapping: Flapping) -> HealthFacts:
    """Return the facts after the set of lasting conditions has changed to ``standing``.

    When the last condition has passed, a test is needed.
    """
    if standing == before.standing:
        return before
    need = before.need if standing else max(before.need, Need.TEST)
    return _damped(before, replace(before, standing=standing, need=need), now_s, flapping, by_itself=True)


def restored_facts(before: HealthFacts | None, *, rebooted: bool = False, gone: bool = False) -> HealthFacts:
    """Return the facts with which a starting agent continues, from the stored ones.

    Missed readings, use and lasting conditions are dropped, because they are observed again.

    Args:
        before: the stored facts; None if they are lost, in which case the card must pass a test.
        rebooted: the machine was restarted since they were stored, which has reset every card.
        gone: the driver reports that the device is not present any more.
    """
    after = HealthFacts(need=Need.TEST) if before is None else _kept(before, rebooted=rebooted)
    return _CHANGES[HealthEvent.GONE](after) if gone else after


def attached_facts(before: HealthFacts) -> HealthFacts:
    """Return the facts of a card that is attached again after it was detached from its driver: it must pass a test."""
    return replace(before, misses=0, gone=False, need=_tested(before))


def _kept(before: HealthFacts, *, rebooted: bool) -> HealthFacts:
    need = _tested(before) if before.standing else before.need
    if rebooted and need is Need.RESET:
        need = Need.TEST
    return replace(before, misses=0, idle=False, refused=False, standing=(), need=need)


def _damped(
    before: HealthFacts, after: HealthFacts, now_s: float, flapping: Flapping, *, by_itself: bool
) -> HealthFacts:
    if not by_itself or before.health is not Health.HEALTHY or after.health is Health.HEALTHY:
        return after
    left_at = (*(at for at in before.left_at if now_s - at < flapping.window_s), now_s)[-flapping.most :]
    return replace(after, left_at=left_at, latched=after.latched or len(left_at) >= flapping.most)


def _tested(before: HealthFacts) -> Need:
    return max(before.need, Need.TEST)


def _undrained(before: HealthFacts) -> HealthFacts:
    """Return the facts after an administrator has declared the card fit: needs and earlier faults are dropped."""
    if before.health is Health.HEALTHY:
        return replace(before, left_at=())
    return replace(before, drained=False, latched=False, need=Need.TEST, refused=False, left_at=(), hold_until_s=0.0)


def _reset(before: HealthFacts) -> HealthFacts:
    need = Need.TEST if before.need is Need.RESET else before.need
    return replace(before, need=need, refused=False)


_CHANGES: dict[HealthEvent, Callable[[HealthFacts], HealthFacts]] = {
    HealthEvent.APP_FAULT: lambda c: c,
    HealthEvent.NEEDS_RESET: lambda c: replace(c, need=max(c.need, Need.RESET), refused=False, idle=False),
    HealthEvent.NEEDS_REPLACE: lambda c: replace(c, need=Need.OPERATOR),
    HealthEvent.GONE: lambda c: replace(c, gone=True, need=_tested(c)),
    HealthEvent.MISSED: lambda c: replace(c, misses=min(2, c.misses + 1), need=_tested(c)),
    HealthEvent.ANSWERED: lambda c: replace(c, misses=0, gone=False),
    HealthEvent.IDLE: lambda c: replace(c, idle=c.need is Need.RESET),
    HealthEvent.IN_USE: lambda c: replace(c, idle=False),
    HealthEvent.RESET_DONE: _reset,
    HealthEvent.RESET_REFUSED: lambda c: replace(c, refused=c.need is Need.RESET),
    HealthEvent.TEST_FAILED: lambda c: replace(c, need=_tested(c)),
    HealthEvent.HOLD_OVER: lambda c: replace(c, hold_until_s=0.0),
    HealthEvent.DRAIN: lambda c: replace(c, drained=True),
    HealthEvent.UNDRAIN: _undrained,
}
