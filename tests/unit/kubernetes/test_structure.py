"""Stages are changed by transition tables only, and the state of a pod by its store only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import calabash.kubernetes
from calabash.kubernetes.planner.state.pod_entry import PodEntry

ROOT = Path(calabash.kubernetes.__file__).parent
PLANNER = ROOT / "planner"
OWNERS = {"store.py", "actions.py"}  # in planner/state
STORED = {"hostnames", "entries", "on_node", "newcomers", "times_offered", "unbound", "unready", "started", "scheduler"}
STORED |= {"groups", "riders", "namespaces"}
CHANGES = {"pop", "add", "discard", "clear", "setdefault", "update", "append", "remove", "popitem", "extend"}


def assigned(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the targets of all assignments and deletions, without subscripts, and the objects of changing calls."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func.value]
        while targets:
            target = targets.pop()
            if isinstance(target, ast.Tuple | ast.List):
                targets += target.elts
            elif isinstance(target, ast.Subscript):
                targets.append(target.value)
            else:
                yield target


def changed_attributes(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each changed attribute as the text of its object and its name."""
    for target in assigned(ast.parse(path.read_text())):
        if isinstance(target, ast.Attribute):
            yield ast.unparse(target.value), target.attr


def test_stages_are_assigned_by_transition_tables_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {of}.stage"
        for path in sorted(ROOT.rglob("*.py"))
        for of, name in changed_attributes(path)
        if name == "stage"
    ]
    assert found == []


def test_state_of_pods_is_changed_by_the_store_only() -> None:
    entry = {field.name for field in fields(PodEntry)}
    found = [
        f"{path.relative_to(PLANNER)}: {of}.{name}"
        for path in sorted(PLANNER.rglob("*.py"))
        if not (path.parent.name == "state" and path.name in OWNERS)
        for of, name in changed_attributes(path)
        if of != "self" and name in entry | STORED
    ]
    assert found == []


def test_a_changed_field_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        "entry.stage = x\ndel store.entries[uid]\nstore.unready.add(n)\na, entry.plan = b\nentry.after -= c\n"
    )
    names = sorted(name for _, name in changed_attributes(path))
    assert names == ["after", "entries", "plan", "stage", "unready"]
