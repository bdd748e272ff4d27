"""Life cycle of an allocation: the node agent and the journal follow one table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import calabash.node
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.allocation_lifecycle import ALLOCATION_LIFECYCLE, AllocationEvent, advanced
from calabash.model.request import AllocationId, GpuRequest, Placement
from calabash.model.state_machine import UnlistedTransitionError

RECORD = AllocationRecord(
    id=AllocationId("a"),
    state=ALLOCATION_LIFECYCLE.initial,
    request=GpuRequest(),
    placement=Placement(node="n", mode="exclusive", slices=()),  # type: ignore[arg-type]
)
ORDER = list(AllocationState)


@given(st.lists(st.sampled_from(AllocationEvent), max_size=5))
def test_allocation_never_returns_to_an_earlier_state(events: list[AllocationEvent]) -> None:
    record = RECORD
    for event in events:
        if (record.state, event) in ALLOCATION_LIFECYCLE.table:
            after = advanced(record, event, ended_at=1.0)
            assert ORDER.index(after.state) > ORDER.index(record.state)
            assert record.state in ALLOCATION_LIFECYCLE.sources(after.state), "the journal would not write it"
            record = after
        else:
            with pytest.raises(UnlistedTransitionError, match="allocation a: no transition from stage"):
                advanced(record, event)


def test_node_agent_states_no_state_but_the_first() -> None:
    found = [
        (path.name, ast.unparse(keyword.value))
        for path in sorted(Path(calabash.node.__file__).parent.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "state" and ast.unparse(keyword.value).startswith("AllocationState.")
    ]
    assert found == [("table.py", "AllocationState.GRANTED")]
