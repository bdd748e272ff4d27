"""Page of the reason codes (docs/reference/reasons.md): meaning, action, exit code, and the parts that use each code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import calabash
from calabash.cli.failure import exit_code
from calabash.model.errors import REASON_ACTIONS, REASON_DESCRIPTIONS, Reason

SOURCES = Path(calabash.__file__).parent
GROUPS = {
    "Errors": Reason.BAD_REQUEST,
    "Requests that wait or are refused": Reason.NO_DEVICES,
    "Running requests that are stopped": Reason.RECLAIM,
    "Differences between granted and measured use": Reason.STRANGER,
}
"""Headings of the page, with the first code below each."""
PARTS_MAX = 6  # a code that more parts use is one of most parts

# Part of the product of each package; a longer path comes first.
_PARTS = {
    "adapters/kube": "Kubernetes",
    "adapters/kubelet": "Kubernetes",
    "adapters/gpu": "devices",
    "adapters/store": "database",
    "adapters/ovn": "networks",
    "adapters/links": "networks",
    "adapters/ufm": "networks",
    "adapters": "host",
    "api": "API",
    "binder": "pool",
    "broker": "remote devices",
    "cli": "command line",
    "controllers": "networks",
    "exporter": "metrics",
    "gateway": "API and console over TCP",
    "kubernetes": "Kubernetes",
    "ledger": "invoices",
    "model/versions.py": "all programs",
    "model": "pool",
    "net": "networks",
    "node": "node agent",
    "platform": "API",
    "pool": "pool",
    "scenario": "simulation",
    "sched": "scheduler",
    "sharing": "scheduler",
    "sim": "simulation",
    "transport": "API",
}
# Modules that only map all codes to exit codes or to statuses.
_MAPS = frozenset({"cli/failure.py", "model/errors.py", "platform/handlers/application.py"})
_HEAD = """\
# Reason codes

Errors, explanations of waiting requests, events and metrics carry these codes. The meaning of a code never changes; the
message beside it names the object and the numbers. `calabash why NAME` and `kubectl calabash why POD` print the code of a
waiting request with its numbers. The exit code is the one of `calabash` commands; the last column names the parts of the
product whose code uses the reason.
"""


def reasons_page() -> str:
    """Return the page: one table for each group of codes."""
    parts = parts_of_reasons()
    first = {reason: heading for heading, reason in GROUPS.items()}
    lines = [_HEAD.rstrip("\n")]
    for reason in Reason:
        if reason in first:
            lines += [
                f"\n## {first[reason]}\n",
                "| code | meaning | what to do | exit code | where |",
                "|---|---|---|---|---|",
            ]
        where = ", ".join(sorted(parts[reason])) if len(parts[reason]) <= PARTS_MAX else "most parts"
        cells = (REASON_DESCRIPTIONS[reason], REASON_ACTIONS[reason], exit_code(reason), where)
        lines.append(f"| `{reason}` | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def parts_of_reasons() -> Mapping[Reason, set[str]]:
    """Return the parts of the product whose modules name each code."""
    found: dict[Reason, set[str]] = {reason: set() for reason in Reason}
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if name in _MAPS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
                found[Reason[node.attr]].add(_part(name))
    return found


def _part(name: str) -> str:
    return next(part for folder, part in _PARTS.items() if name == folder or name.startswith(f"{folder}/"))
