"""The health table, walked by stories and by random events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.agent.health import HealthAction, HealthEvent, decide, xid_event
from calabash.model.device import Health

_E = HealthEvent


def _walk(*events: HealthEvent, start: Health = Health.HEALTHY) -> Health:
    state = start
    for event in events:
        state, _ = decide(state, event)
    return state


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ((_E.APP_FAULT,), Health.HEALTHY),
        ((_E.MISSED,), Health.SUSPECT),
        ((_E.MISSED, _E.ANSWERED), Health.RECOVERING),
        ((_E.MISSED, _E.ANSWERED, _E.PROBE_PASSED), Health.HEALTHY),
        ((_E.MISSED, _E.MISSED), Health.LOST),
        ((_E.GONE,), Health.LOST),
        ((_E.GONE, _E.ANSWERED, _E.PROBE_FAILED), Health.RECOVERING),
        ((_E.GONE, _E.ANSWERED, _E.PROBE_FAILED, _E.ANSWERED, _E.PROBE_PASSED), Health.HEALTHY),
        ((_E.NEEDS_RESET,), Health.DRAINING),
        ((_E.NEEDS_RESET, _E.ANSWERED), Health.DRAINING),
        ((_E.NEEDS_RESET, _E.IDLE, _E.PROBE_PASSED), Health.HEALTHY),
        ((_E.ECC_DOUBLE_BIT, _E.IDLE, _E.NEEDS_RESET), Health.DRAINING),
    ],
)
def test_a_story_of_a_card_ends_where_it_should(events: tuple[HealthEvent, ...], end: Health) -> None:
    assert _walk(*events) is end


@given(st.lists(st.sampled_from(HealthEvent)))
def test_from_every_state_a_card_that_answers_and_passes_its_probe_becomes_healthy(events: list[HealthEvent]) -> None:
    state = _walk(*events)
    assert _walk(_E.ANSWERED, _E.IDLE, _E.ANSWERED, _E.PROBE_PASSED, start=state) is Health.HEALTHY


@given(st.sampled_from(Health), st.sampled_from(HealthEvent))
def test_nobody_becomes_healthy_without_a_probe(state: Health, event: HealthEvent) -> None:
    after, _ = decide(state, event)
    if after is Health.HEALTHY and state is not Health.HEALTHY:
        assert event is _E.PROBE_PASSED


@given(st.sampled_from(Health), st.sampled_from(HealthEvent))
def test_tenants_are_told_when_their_card_is_taken_out_of_service(state: Health, event: HealthEvent) -> None:
    after, actions = decide(state, event)
    if after in {Health.DRAINING, Health.LOST} and after is not state:
        assert HealthAction.TELL in actions


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (13, _E.APP_FAULT),
        (31, _E.APP_FAULT),
        (43, _E.APP_FAULT),
        (48, _E.NEEDS_RESET),
        (79, _E.GONE),
        (9999, _E.APP_FAULT),
    ],
)
def test_an_xid_is_the_programs_fault_the_cards_or_its_end(code: int, event: HealthEvent) -> None:
    assert xid_event(code) is event
