"""Health of a card, or of a part of one, as facts and what follows from them. Pure; the agent feeds events and acts.

Theory of operation. What is known is a handful of facts (``HealthFacts``); an event changes facts, and the state follows
from the facts alone, so that two things wrong at once need no state of their own and none hides the other. Only HEALTHY
takes new work.

    LOST        it does not answer, or it must be replaced
    DRAINING    it needs a reset and is in use, was drained by an operator, or fails again and again
    SUSPECT     it missed one question, or something lasts that is no fault of its own: too hot, a link is down
    RECOVERING  it is being reset, must pass a test, or has to stay well for a while
    HEALTHY     none of these

A card comes back by itself as far as its need allows: NOTHING < TEST < RESET < OPERATOR. A reset leads to a test, and
nobody becomes healthy again without one. What needs an OPERATOR stays out of service until ``UNDRAIN``.

Flapping is damped: each time a card stops being healthy within a window, it has to stay well for twice as long before it
counts as healthy; after too many times it keeps draining until an operator says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from calabash.model.device import Health


class Need(IntEnum):
    """What has to be done before a card is trusted again; a larger one includes the smaller."""

    NOTHING = 0
    TEST = 1
    RESET = 2
    OPERATOR = 3


class HealthEvent(StrEnum):
    """What can happen to a card or a part of one, seen from its agent."""

    APP_FAULT = "app_fault"  # a program on it is at fault; it is fine
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
    """What the agent is to do for a card that is to come back."""

    RESET = "reset"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flapping:
    """How often something may stop being healthy within ``window_s``, and how long it must stay well before it counts.

    The first time costs nothing, the second ``hold_s``, then twice as much each time, at most ``hold_max_s``.
    """

    window_s: float = 3600.0
    most: int = 5
    hold_s: float = 10.0
    hold_max_s: float = 600.0

    def hold(self, times: int) -> float:
        """How long to stay well after having failed so many times."""
        if times < 2:
            return 0.0
        return min(self.hold_max_s, self.hold_s * 2.0 ** min(times - 2, 60))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """The facts.

    Args:
        misses: questions in a row that were not answered, counted up to 2.
        gone: its driver says that it is not there any more.
        drained: an operator wants nothing new on it.
        standing: what lasts and is no fault of its own, by name.
        idle: nobody is on it; kept only while it needs a reset.
        refused: a reset was tried and cannot be done now.
        left_at: when it stopped being healthy by itself, seconds since 1970, within the window.
        hold_until_s: it has to stay well until then; 0: it need not.
        latched: it failed too often.
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
        """The state that follows."""
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
        """What would bring it back now. An operator who drains a card may be working on it: nothing is done then."""
        if self.gone or self.misses or self.drained:
            return None
        if self.need is Need.RESET and self.idle:
            return HealthStep.RESET
        if self.need is Need.TEST and not self.standing:
            return HealthStep.TEST
        return None


def decide(before: HealthFacts, event: HealthEvent, *, now_s: float, flapping: Flapping) -> HealthFacts:
    """The facts after an event."""
    if event is HealthEvent.TEST_PASSED:
        if before.need is not Need.TEST or before.misses or before.gone or before.standing:
            return before  # what has happened since it began wants a test of its own
        hold_s = flapping.hold(len(before.left_at))
        return replace(before, need=Need.NOTHING, hold_until_s=now_s + hold_s if hold_s else 0.0)
    return _damped(before, _CHANGES[event](before), now_s, flapping, by_itself=event is not HealthEvent.DRAIN)


def stand(before: HealthFacts, standing: tuple[str, ...], *, now_s: float, flapping: Flapping) -> HealthFacts:
    """The facts when this lasts, and nothing else that is no fault of its own; it is tested when nothing lasts any more."""
    if standing == before.standing:
        return before
    need = before.need if standing else max(before.need, Need.TEST)
    return _damped(before, replace(before, standing=standing, need=need), now_s, flapping, by_itself=True)


def restored(before: HealthFacts, *, rebooted: bool = False) -> HealthFacts:
    """The facts as a pool finds them that starts again: who is on it and whether it answers is to be seen anew.

    ``rebooted``: the machine was restarted meanwhile, and with it every card reset.
    """
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
    """An operator vouches for it: what had to be done is done, and what happened before is forgotten."""
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
