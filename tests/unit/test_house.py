"""Sizes of the house: a module or class that outgrows them is a thought that has not been split yet."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import calabash

SOURCES = sorted(Path(calabash.__file__).parent.rglob("*.py"))
MODULE_LINES_MAX, MODULE_LINES_MEDIAN = 400, 120
# One idea of 300 lines is better than two classes of 150 that share their fields.
CLASS_LINES_MAX, PUBLIC_METHODS_MAX = 300, 18


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_no_module_is_longer_than_400_lines_and_the_median_is_at_most_120() -> None:
    assert [f"{path}: {_lines(path)}" for path in SOURCES if _lines(path) > MODULE_LINES_MAX] == []
    assert statistics.median(_lines(path) for path in SOURCES if path.name != "__init__.py") <= MODULE_LINES_MEDIAN


def test_no_class_is_longer_than_300_lines_or_has_more_than_18_public_methods() -> None:
    wide = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                functions = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
                public = sum(not f.name.startswith("_") for f in functions)
                if lines > CLASS_LINES_MAX or public > PUBLIC_METHODS_MAX:
                    wide.append(f"{path}: class {node.name}: {lines} lines, {public} public methods")
    assert wide == []


def test_no_two_classes_of_the_product_have_the_same_name() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
