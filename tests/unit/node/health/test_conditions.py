"""State machine of health with given and random events, and the classes of its policy."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calabash.node
from calabash.model.device import Health
from calabash.model.errors import CalabashError, Reason
from calabash.node.health.conditions import (
    Flapping,
    HealthEvent,
    HealthFacts,
    HealthStep,
    Need,
    attached_facts,
    decide,
    restored_facts,
    set_standing,
)
from calabash.node.health.policy import FaultClass, HealthPolicy, read_policy

_E = HealthEvent
FLAPPING = Flapping(window_s=100.0, most=4, hold_s=10.0, hold_max_s=15.0)
BACK = (_E.ANSWERED, _E.IDLE, _E.RESET_DONE, _E.TEST_PASSED, _E.HOLD_OVER)  # all that can go well without an operator
EVENTS = st.lists(st.one_of(st.sampled_from(HealthEvent), st.sampled_from([(), ("thermal",), ("nvlink", "thermal")])))


def _walk(*events: HealthEvent | tuple[str, ...], start: HealthFacts | None = None, step_s: float = 1.0) -> HealthFacts:
    """Return the facts after these events, one each ``step_s``; a tuple of names sets the lasting conditions."""
    condition = start or HealthFacts()
    for number, event in enumerate(events):
        now_s = 1000.0 + number * step_s
        if isinstance(event, tuple):
            condition = set_standing(condition, event, now_s=now_s, flapping=FLAPPING)
        else:
            condition = decide(condition, event, now_s=now_s, flapping=FLAPPING)
    return condition


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ((_E.APP_FAULT,), Health.HEALTHY),
        ((_E.TEST_FAILED,), Health.RECOVERING),
        ((_E.MISSED,), Health.SUSPECT),
        ((_E.MISSED, _E.ANSWERED), Health.RECOVERING),
        ((_E.MISSED, _E.ANSWERED, _E.TEST_PASSED), Health.HEALTHY),
        ((_E.MISSED, _E.MISSED), Health.LOST),
        ((_E.GONE,), Health.LOST),
        ((_E.GONE, _E.ANSWERED, _E.TEST_FAILED), Health.RECOVERING),
        ((_E.GONE, _E.ANSWERED, _E.TEST_FAILED, _E.TEST_PASSED), Health.HEALTHY),
        ((_E.MISSED, _E.TEST_PASSED, _E.ANSWERED), Health.RECOVERING),
        ((_E.NEEDS_RESET,), Health.DRAINING),
        ((_E.NEEDS_RESET, _E.ANSWERED), Health.DRAINING),
        ((_E.NEEDS_RESET, _E.IDLE), Health.RECOVERING),
        ((_E.NEEDS_RESET, _E.IDLE, _E.IN_USE), Health.DRAINING),
        ((_E.NEEDS_RESET, _E.IDLE, _E.TEST_PASSED), Health.RECOVERING),
        ((_E.NEEDS_RESET, _E.IDLE, _E.RESET_REFUSED), Health.DRAINING),
        ((_E.NEEDS_RESET, _E.IDLE, _E.RESET_DONE), Health.RECOVERING),
        ((_E.NEEDS_RESET, _E.IDLE, _E.RESET_DONE, _E.TEST_PASSED), Health.HEALTHY),
        ((_E.NEEDS_RESET, _E.GONE, _E.ANSWERED), Health.DRAINING),
        ((_E.NEEDS_REPLACE, *BACK), Health.LOST),
        ((_E.NEEDS_REPLACE, _E.UNDRAIN), Health.RECOVERING),
        ((("thermal",),), Health.SUSPECT),
        ((("thermal",), ()), Health.RECOVERING),
        ((("thermal",), (), _E.TEST_PASSED), Health.HEALTHY),
        ((("thermal",), _E.NEEDS_RESET), Health.DRAINING),
        ((_E.DRAIN, *BACK), Health.DRAINING),
        ((_E.DRAIN, _E.GONE), Health.LOST),
        ((_E.DRAIN, _E.UNDRAIN), Health.RECOVERING),
        ((_E.DRAIN, _E.UNDRAIN, _E.TEST_PASSED), Health.HEALTHY),
    ],
)
def test_sequence_of_events_leads_to_the_expected_state(
    events: tuple[HealthEvent | tuple[str, ...], ...], end: Health
) -> None:
    assert _walk(*events).health is end


@given(EVENTS)
def test_undrain_and_a_passed_test_make_a_card_healthy_from_any_state(
    events: list[HealthEvent | tuple[str, ...]],
) -> None:
    assert _walk(*events, _E.UNDRAIN, (), *BACK).health is Health.HEALTHY


@given(EVENTS)
def test_card_that_needs_replacement_stays_lost_without_undrain(
    events: list[HealthEvent | tuple[str, ...]],
) -> None:
    without = [event for event in events if event is not _E.UNDRAIN]
    assert _walk(_E.NEEDS_REPLACE, *without).health is Health.LOST


@given(EVENTS)
def test_no_card_becomes_healthy_without_a_test(events: list[HealthEvent | tuple[str, ...]]) -> None:
    condition, tested = HealthFacts(), True
    for event in events:
        before = condition.health
        condition = _walk(event, start=condition)
        tested = (tested or event is _E.TEST_PASSED) and condition.need is Need.NOTHING
        if condition.health is Health.HEALTHY and before is not Health.HEALTHY:
            assert tested


@given(EVENTS)
def test_only_an_idle_card_is_reset(events: list[HealthEvent | tuple[str, ...]]) -> None:
    in_use = True
    condition = HealthFacts()
    for event in events:
        in_use = event is _E.IN_USE or (in_use and event is not _E.IDLE) or event is _E.NEEDS_RESET
        condition = _walk(event, start=condition)
        assert condition.step is not HealthStep.RESET or not in_use


@given(EVENTS, st.sampled_from([Health.SUSPECT, Health.DRAINING, Health.RECOVERING, Health.LOST]))
def test_every_state_is_reached_and_left(events: list[HealthEvent | tuple[str, ...]], wanted: Health) -> None:
    ways: dict[Health, tuple[HealthEvent | tuple[str, ...], ...]] = {
        Health.SUSPECT: (_E.MISSED,),
        Health.DRAINING: (_E.NEEDS_RESET,),
        Health.RECOVERING: (_E.NEEDS_RESET, _E.IDLE),
        Health.LOST: (_E.GONE,),
    }
    healthy = _walk(*events, _E.UNDRAIN, (), *BACK)
    there = _walk(*ways[wanted], start=HealthFacts(left_at=healthy.left_at[-1:]))
    assert there.health is wanted
    assert _walk((), *BACK, start=there).health is Health.HEALTHY


def test_hold_time_grows_with_each_failure() -> None:
    condition, holds = HealthFacts(), []
    for _ in range(3):
        condition = _walk(_E.GONE, _E.ANSWERED, _E.TEST_PASSED, start=condition)
        holds.append(condition.hold_until_s - 1002.0 if condition.hold_until_s else 0.0)
        assert condition.health is (Health.RECOVERING if condition.hold_until_s else Health.HEALTHY)
        condition = _walk(_E.HOLD_OVER, start=condition)
    assert holds == [0.0, 10.0, 15.0]


def test_card_that_fails_too_often_drains_until_undrain() -> None:
    condition = _walk(*(_E.GONE, *BACK) * 4)
    assert condition.latched
    assert _walk(*BACK, start=condition).health is Health.DRAINING
    assert _walk(_E.UNDRAIN, *BACK, start=condition).health is Health.HEALTHY


def test_failures_outside_of_the_window_do_not_count() -> None:
    assert not _walk(*(_E.GONE, *BACK) * 6, step_s=20.0).latched


@given(EVENTS)
def test_facts_survive_a_restart_of_the_pool(events: list[HealthEvent | tuple[str, ...]]) -> None:
    before = _walk(*events)
    after = restored_facts(before)
    assert (after.drained, after.latched, after.gone) == (before.drained, before.latched, before.gone)
    assert after.need >= before.need
    assert before.health is Health.HEALTHY or after.health is not Health.HEALTHY
    gone = restored_facts(before, gone=True)
    assert gone == replace(after, gone=True, need=max(after.need, Need.TEST))
    assert gone.health is Health.LOST


def test_card_without_stored_facts_must_pass_a_test() -> None:
    assert restored_facts(None) == HealthFacts(need=Need.TEST)
    assert restored_facts(None, gone=True) == HealthFacts(need=Need.TEST, gone=True)


@given(EVENTS)
def test_attached_card_must_pass_a_test_and_keeps_its_other_facts(events: list[HealthEvent | tuple[str, ...]]) -> None:
    before = _walk(*events)
    after = attached_facts(before)
    assert after == replace(before, misses=0, gone=False, need=max(before.need, Need.TEST))
    assert after.health is not Health.HEALTHY


def test_facts_of_health_are_changed_by_the_state_machine_only() -> None:
    found = [
        (path.name, ast.unparse(call))
        for path in sorted(Path(calabash.node.__file__).parent.rglob("*.py"))
        if path.name != "conditions.py"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and call.keywords
        if ast.unparse(call.func) == "HealthFacts" or (call.args and ast.unparse(call.args[0]).endswith(".condition"))
        if ast.unparse(call.func) in {"HealthFacts", "replace"}
    ]
    shown = "replace(entry.condition, hold_until_s=hold_s + ahead_s if hold_s else 0.0)"  # in calendar time
    assert found == [("devices.py", shown)]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (13, FaultClass.APPLICATION),
        (31, FaultClass.APPLICATION),
        (43, FaultClass.APPLICATION),
        (63, FaultClass.APPLICATION),
        (94, FaultClass.APPLICATION),
        (48, FaultClass.RESET),
        (95, FaultClass.RESET),
        (119, FaultClass.RESET),
        (54, FaultClass.REPLACE),
        (9999, FaultClass.APPLICATION),
    ],
)
def test_xid_has_its_published_class(code: int, fault: FaultClass) -> None:
    assert HealthPolicy().xid.class_of(code) is fault


def test_policy_file_changes_only_the_settings_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "health.toml").write_text(
        "[xid]\nreplace = [48]\napplication = [119]\n[flapping]\nmost = 3\n[memory]\nrow_remap_pending = 'ignore'\n"
    )
    policy = read_policy(tmp_path)
    assert [policy.xid.class_of(code) for code in (48, 119, 95)] == [
        FaultClass.REPLACE,
        FaultClass.APPLICATION,
        FaultClass.RESET,
    ]
    assert policy.damping().most == 3
    assert policy.damping().window_s == Flapping().window_s
    assert policy.memory.row_remap_pending is FaultClass.IGNORE


@pytest.mark.parametrize(
    "text",
    [
        "[xids]\nreset = [48]",
        "[xid]\nreset = ['48']",
        "[xid]\nreset = [0]",
        "[xid]\nreset = [48]\nreplace = [48]",
        "[flapping]\nmost = 1",
        "[recovery]\nanswer_within_s = 0",
        "[memory]\nrow_remap_pending = 'burn'",
        "[xid",
        "\x00",
    ],
)
def test_invalid_policy_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "health.toml").write_text(text)
    with pytest.raises(CalabashError) as caught:
        read_policy(tmp_path)
    assert caught.value.reason is Reason.BAD_FILE
    assert "health.toml" in caught.value.message
    assert caught.value.hint


def test_policy_in_the_guide_is_the_default_except_for_its_examples(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "how-to" / "handle-failed-cards.md").read_text()
    (tmp_path / "health.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    shown = read_policy(tmp_path)
    assert (shown.xid.application, shown.xid.replace) == ((119,), (95,))
    assert msgspec.structs.replace(shown, xid=HealthPolicy().xid) == HealthPolicy()


def test_all_settings_have_defaults_without_a_policy_file(tmp_path: Path) -> None:
    assert read_policy(tmp_path) == HealthPolicy()
