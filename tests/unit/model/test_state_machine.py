"""State machines as tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.reference_states import MACHINES, diagram

from calabash.model.state_machine import StateMachine, UnlistedTransitionError, leads_to


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    BROKEN = "broken"


class Signal(StrEnum):
    SWITCHED = "switched"
    FAILED = "failed"


TABLE = {
    (Light.RED, Signal.SWITCHED): Light.GREEN,
    (Light.GREEN, Signal.SWITCHED): Light.RED,
    **leads_to(Light.BROKEN, Signal.FAILED, (Light.RED, Light.GREEN)),
}
LIGHT: StateMachine[Light, Signal] = StateMachine(
    name="light",
    summary="A traffic light.",
    initial=Light.RED,
    ended=frozenset((Light.BROKEN,)),
    stages={Light.RED: "stop", Light.GREEN: "go", Light.BROKEN: "dark"},
    events={Signal.SWITCHED: "the other colour", Signal.FAILED: "the lamp failed"},
    table=TABLE,
)


@dataclass
class Lamp:
    stage: Any = Light.RED


@given(st.lists(st.sampled_from(Signal)))
def test_object_follows_the_table_and_keeps_its_stage_at_an_unlisted_event(signals: list[Signal]) -> None:
    lamp, expected = Lamp(), Light.RED
    for signal in signals:
        following = TABLE.get((expected, signal))
        if following is None:
            with pytest.raises(
                UnlistedTransitionError, match=f"light north: no transition from stage {expected} at event"
            ):
                LIGHT.advance(lamp, signal, name="north")
        else:
            LIGHT.advance(lamp, signal, name="north")
            expected = following
        assert lamp.stage is expected


def test_diagram_joins_the_events_between_two_stages() -> None:
    assert diagram(LIGHT).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> red",
        "    red --> green: switched",
        "    red --> broken: failed",
        "    green --> red: switched",
        "    green --> broken: failed",
        "    broken --> [*]",
    ]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_stage_and_event_is_described_and_used(machine: StateMachine[Any, Any]) -> None:
    stages = set(machine.initial.__class__.__members__.values())
    (event, *_) = machine.events
    events = set(event.__class__.__members__.values())
    assert set(machine.stages) == stages
    assert set(machine.events) == events == {event for _, event in machine.table}
    reached = {machine.initial}
    while more := {target for (source, _), target in machine.table.items() if source in reached} - reached:
        reached |= more
    assert reached == stages
    assert {source for source, _ in machine.table} == stages - machine.ended
