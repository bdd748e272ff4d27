"""Cost of a release in a pool that holds many other allocations."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from calabash.adapters.host.processes import Process
from calabash.model.request import AllocationId
from calabash.node.agent import NodeAgent
from calabash.pool.pool import processes_of

HELD = [AllocationId(f"a{number}") for number in range(64)]


@dataclass
class _Agent:
    """Node agent that holds many allocations and records those whose processes were looked up."""

    looked_up: list[AllocationId] = field(default_factory=list)

    def snapshot(self, *, processes: bool, only: Any = None) -> Any:
        assert processes
        wanted = [name for name in HELD if only is None or name in only]
        self.looked_up += wanted
        held = [
            SimpleNamespace(record=SimpleNamespace(id=name), processes=(Process(pid=int(name[1:]), start_time=1),))
            for name in wanted
        ]
        return SimpleNamespace(allocations=held)


def test_processes_of_one_allocation_are_looked_up_without_those_of_the_others() -> None:
    agent = _Agent()
    assert [process.pid for process in processes_of(cast("NodeAgent", agent), HELD[7])] == [7]
    assert agent.looked_up == [HELD[7]]
