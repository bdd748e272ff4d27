"""Sources: templates of messages are constants with all their arguments, and no module edits the text of a message."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import calabash

PRODUCT = Path(calabash.__file__).parent
RENDERERS = {"model/messages.py", "model/message_codec.py"}
PACKAGES = ("binder", "cli/net", "kubernetes", "ledger", "net", "node", "platform", "pool", "sched", "sim")
"""Packages that make explanations or show them to readers."""
TEXTS = {
    "message",
    "message_text",
    "hint",
    "hint_text",
    "explanation",
    "summary",
    "cause",
    "cause_text",
    "why",
    "change",
    "remedy",
}
EDITS = {
    "replace",
    "startswith",
    "endswith",
    "split",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "translate",
}
SEARCHES = {"sub", "subn", "search", "match", "fullmatch", "finditer", "findall"}


def _sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((PRODUCT / folder).rglob("*.py")):
            name = str(path.relative_to(PRODUCT))
            if name not in RENDERERS:
                yield name, ast.parse(path.read_text())


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _edits(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            edited = node.func.attr in EDITS and _last(node.func.value) in TEXTS
            searched = node.func.attr in SEARCHES and any(_last(argument) in TEXTS for argument in node.args)
            if edited or searched:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Compare):
            sought = isinstance(node.ops[0], ast.In | ast.NotIn)
            if sought and _last(node.comparators[0]) in TEXTS:
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_no_module_edits_or_searches_the_text_of_a_message() -> None:
    found = [f"{name}:{edit}" for name, tree in _sources(*PACKAGES) for edit in _edits(tree)]
    assert found == []


def test_visibility_of_principals_and_namespaces_uses_no_regular_expressions() -> None:
    for name, tree in [*_sources("platform/access"), *_sources("kubernetes/objects")]:
        if name.endswith("visibility.py"):
            imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            assert "re" not in imported, name


def test_edit_of_a_message_is_found() -> None:
    for edit in ('error.message.replace("a", "b")', 're.sub("a", "b", told.summary)', '"limit" in error.hint'):
        assert len(list(_edits(ast.parse(edit)))) == 1, edit


def test_templates_are_constants_and_each_field_has_an_argument() -> None:
    checked = 0
    for name, tree in _sources(""):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and _last(node.func) == "Message" and node.args):
                continue
            template = node.args[0]
            assert not isinstance(template, ast.JoinedStr | ast.BinOp | ast.Call), f"{name}:{node.lineno}"
            if isinstance(template, ast.Constant):
                fields = {field for _, field, _, _ in Formatter().parse(str(template.value)) if field is not None}
                assert fields == {keyword.arg for keyword in node.keywords}, f"{name}:{node.lineno}"
                checked += 1
    assert checked > 40
