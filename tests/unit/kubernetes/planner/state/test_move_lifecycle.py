"""Life cycle of a move under any sequence of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kubernetes.planner.decide.test_relocations import begin, carry_out
from tests.unit.kubernetes.planner.owners import balance, split

from calabash.kubernetes.planner.state.move_lifecycle import MOVE_LIFECYCLE, MoveStage
from calabash.model.state_machine import StateMachine

STEPS = ["terminate", "delete", "delete_again", "cancel", "refuse", "replace", "wait"]
RARE = [
    ["cancel", "wait"],
    ["cancel", "refuse"],
    ["terminate", "cancel", "terminate", "delete"],
    ["terminate", "refuse"],
    ["terminate", "replace", "wait"],
    ["terminate", "delete", "delete_again", "cancel"],
    ["terminate", "delete", "refuse"],
    ["terminate", "delete", "replace"],
    ["terminate", "delete", "wait"],
    ["delete", "cancel"],
    ["refuse"],
    ["terminate", "wait"],
    ["wait"],
]


def drive(steps: list[str]) -> None:
    """Begin a move and apply the steps; check the reservation after each."""
    cluster, owner = split()
    _, moved = begin(cluster)
    relocations = cluster.core.relocations
    for step in steps:
        match step:
            case "terminate" if moved in cluster.pods:
                cluster.set(replace(cluster.pods[moved], leaving=True))
            case "delete":
                cluster.end(moved)
            case "delete_again":
                relocations.pod_deleted(moved)
            case "cancel":
                for node in cluster.nodes:
                    relocations.cancel_reservations(node)
            case "refuse":
                relocations.eviction_refused(moved)
            case "replace":
                owner.make()
                cluster.decide()
            case "wait":
                cluster.now_s += 700
                cluster.decide()
        for move in relocations._moves.values():
            assert (move.kept is None) == (move.stage is MoveStage.UNRESERVED)
            assert move.stage is not MoveStage.ENDED
        balance(cluster)
    carry_out(cluster)


@given(st.lists(st.sampled_from(STEPS), max_size=7))
def test_no_sequence_of_events_meets_an_unlisted_transition(steps: list[str]) -> None:
    drive(steps)


def test_every_listed_transition_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[tuple[Any, Any]] = set()
    advance = StateMachine.advance

    def recorded(self: StateMachine[Any, Any], subject: Any, event: Any, *, name: str) -> None:
        reached.add((subject.stage, event))
        advance(self, subject, event, name=name)

    monkeypatch.setattr(StateMachine, "advance", recorded)
    for steps in RARE:
        drive(steps)
    assert set(MOVE_LIFECYCLE.table) <= reached
