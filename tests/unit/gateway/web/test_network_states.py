"""State of a network object: the console and the command line show the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.api.networks import NetworkConditionView, NetworkObjectView, NetworkStatusView
from calabash.cli.net.kinds import STATE
from calabash.gateway.web.pages.networks import state_of
from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind


def vpc(*conditions: NetworkConditionView, observed: int = 1) -> NetworkObjectView:
    status = NetworkStatusView(observed_generation=observed, conditions=list(conditions))
    return NetworkObjectView(kind=NetworkKind.VPC, name="red", tenant="vision", generation=1, spec={}, status=status)


def on_command_line(item: NetworkObjectView) -> str:
    (column,) = (column for column in STATE if column.title == "STATE")
    return column.text(msgspec.to_builtins(item))


def condition(kind: ConditionKind, *, holds: bool | None, reason: str = "") -> NetworkConditionView:
    return NetworkConditionView(kind=kind, holds=holds, reason=reason)


@pytest.mark.parametrize(
    ("kinds", "word", "tone"),
    [
        ((), "waits", "warn"),
        (("valid",), "valid", "warn"),
        (("valid", "realized"), "realized", "good"),
        (("valid", "realized", "ready"), "ready", "good"),
    ],
)
def test_state_is_the_most_advanced_condition(kinds: tuple[str, ...], word: str, tone: str) -> None:
    found = state_of(vpc(*(condition(ConditionKind(kind), holds=True) for kind in kinds)))
    assert (found.word, found.tone) == (word, tone)


CONDITIONS = st.lists(
    st.tuples(st.sampled_from(ConditionKind), st.sampled_from([True, False, None]), st.sampled_from(["", "down"])),
    max_size=3,
    unique_by=lambda one: one[0],
)


@given(found=CONDITIONS, observed=st.sampled_from([0, 1]))
def test_console_and_command_line_show_the_same_state(
    found: list[tuple[ConditionKind, bool | None, str]], observed: int
) -> None:
    item = vpc(*(condition(kind, holds=holds, reason=reason) for kind, holds, reason in found), observed=observed)
    shown = state_of(item)
    assert on_command_line(item) == (f"no: {shown.word}" if shown.tone == "bad" else shown.word)
