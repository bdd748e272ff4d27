"""Page of the state machines (docs/reference/state-machines.md), from their transition tables."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from calabash.broker.server.lease_lifecycle import LEASE_LIFECYCLE
from calabash.kubernetes.planner.state.move_lifecycle import MOVE_LIFECYCLE
from calabash.kubernetes.planner.state.pod_lifecycle import POD_LIFECYCLE
from calabash.model.allocation_lifecycle import ALLOCATION_LIFECYCLE
from calabash.model.state_machine import StateMachine

MACHINES: tuple[StateMachine[Any, Any], ...] = (POD_LIFECYCLE, MOVE_LIFECYCLE, ALLOCATION_LIFECYCLE, LEASE_LIFECYCLE)

_HEAD = """\
# State machines

Each object with a life cycle has one table of transitions in the code. An event that a table does not list for the present
stage is an error: tests fail; a running planner logs and counts it (`calabash_planner_unlisted_transitions_total`), the object
keeps its stage, and a pod that is neither bound nor evicted is planned anew. This page is generated from the tables.
"""


def states_page() -> str:
    """Return the page: for each machine a diagram, its stages, its events, and the transitions of each event."""
    return "\n".join([_HEAD, *(_section(machine) for machine in MACHINES)])


def diagram(machine: StateMachine[Any, Any]) -> str:
    """Return the machine as a Mermaid state diagram; transitions between the same stages share an arrow."""
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (source, event), target in machine.table.items():
        if source is not target:
            arrows.setdefault((source, target), []).append(event)
    order = {stage: number for number, stage in enumerate(machine.stages)}
    lines = ["stateDiagram-v2", f"    [*] --> {machine.initial}"]
    for source, target in sorted(arrows, key=lambda pair: (order[pair[0]], order[pair[1]])):
        lines.append(f"    {source} --> {target}: {', '.join(arrows[source, target])}")
    lines += [f"    {stage} --> [*]" for stage in machine.stages if stage in machine.ended]
    return "\n".join(lines)


def _section(machine: StateMachine[Any, Any]) -> str:
    lines = [f"## {machine.name.capitalize()}\n", f"{machine.summary}\n"]
    lines += ["```mermaid", diagram(machine), "```\n"]
    lines += ["| stage | meaning |", "|---|---|"]
    lines += [f"| `{stage}` | {text} |" for stage, text in machine.stages.items()]
    lines += ["", "| event | meaning | transitions |", "|---|---|---|"]
    for event, text in machine.events.items():
        sources: dict[StrEnum, list[str]] = {}
        for source in machine.stages:
            target = machine.table.get((source, event))
            if target is not None:
                sources.setdefault(target, []).append(f"`{source}`")
        moves = "; ".join(f"{', '.join(found)} → `{target}`" for target, found in sources.items())
        lines.append(f"| `{event}` | {text} | {moves} |")
    return "\n".join([*lines, ""])
