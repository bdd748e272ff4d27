"""The interface of ``NodeAgent`` is narrow, and front ends import no component behind it."""

from __future__ import annotations

import ast
from pathlib import Path

from calabash.node.agent import NodeAgent

SOURCES = Path(__file__).resolve().parents[3] / "src" / "calabash"
BEHIND = {
    "allocations.table",
    "allocations.lifecycle",
    "devices.inventory",
    "loops",
    "metering.usage_tracker",
    "slots.protocol",
    "processes.reaper",
    "threads",
    "wiring",
}
FRONT = ("binder", "platform", "pool", "cli")


def test_agent_has_no_other_public_attributes() -> None:
    public = {name for name in vars(NodeAgent) if not name.startswith("_")}
    asked = {"start", "stop", "grant", "enter", "end", "snapshot", "devices", "record", "records", "event", "subscribe"}
    assert public == asked | {
        "administration",
        "arbiter_pid",
        "has_ended_programs",
        "membership",
        "mig_layouts",
        "notes",
    }


def test_front_ends_import_no_component_of_the_agent() -> None:
    for path in (file for package in FRONT for file in (SOURCES / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calabash.node."):
                part = str(node.module).removeprefix("calabash.node.")
                names = {alias.name for alias in node.names}
                assert part not in BEHIND or names <= {"no_devices"}, f"{path}: {node.module}"
