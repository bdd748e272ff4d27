"""Executor of mode mps: allocations whose MIG instance is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.node.mps_world import ONE, EndedAllocations, record, tools

from calabash.model.errors import CalabashError, Reason
from calabash.node.modes.mps import executor as executor_module
from calabash.node.modes.mps.executor import MpsExecutor
from calabash.node.modes.mps.services import Services
from calabash.node.modes.mps.target import Served


def test_allocation_ends_if_its_instance_is_gone_and_not_if_the_card_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocations = EndedAllocations()
    executor = MpsExecutor(tools(tmp_path, allocations=allocations))
    monkeypatch.setattr(Services, "clear_failures", lambda _: None)
    executor.recover([record("3g.40gb", 4)])
    executor.verify([record("3g.40gb", 4)])
    assert allocations.ended == [(ONE, Reason.UNHEALTHY, "its 3g.40gb at 4 does not exist any more")]

    def silent(*_: object) -> Served:
        raise CalabashError("no answer", reason=Reason.TIMEOUT)

    monkeypatch.setattr(executor_module, "served_at", silent)
    executor.verify([record("3g.40gb", 4)])
    assert len(allocations.ended) == 1


def test_allocation_without_a_service_yet_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Services, "clear_failures", lambda _: None)
    allocations = EndedAllocations()
    executor = MpsExecutor(tools(tmp_path, allocations=allocations))
    executor.verify([record()])  # journalled, and its service is not there yet
    assert allocations.ended == []
