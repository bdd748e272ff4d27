"""Page on threads and locks: it names every thread and every lock of the product, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "calabash"
PAGE = (ROOT / "docs" / "concepts" / "threads.md").read_text()
DAEMON = ("adapters", "binder", "kubernetes", "node", "platform", "pool", "transport")
THREADS = {"Thread": "name", "DeadlineThread": "", "add": ""}  # who starts one, and the argument that names it


def _modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in DAEMON:
        for path in sorted((SOURCES / package).rglob("*.py")):
            yield path.relative_to(SOURCES), ast.parse(path.read_text())


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _threads() -> Iterator[tuple[str, str]]:
    """Yield (name, file) of every thread with a constant name."""
    for path, module in _modules():
        for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
            if _called(call) == "add" and not any(k.arg == "every_s" for k in call.keywords):
                continue
            if _called(call) in THREADS:
                named = [k.value for k in call.keywords if k.arg == THREADS[_called(call)]] or call.args[:1]
                for value in named:
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield value.value, str(path)


def _locks() -> Iterator[str]:
    """Yield ``package.module.Class.attribute`` or ``package.module.variable`` of every assignment of a lock."""
    for path, module in _modules():
        dotted = ".".join(path.with_suffix("").parts)
        for holder in ast.walk(module):
            if not isinstance(holder, ast.ClassDef | ast.FunctionDef):
                continue
            for node in ast.walk(holder):
                if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                    continue
                target = node.targets[0]
                if _called(node.value) not in {"Lock", "RLock", "Condition", "Semaphore"} or node.value.keywords:
                    continue
                if isinstance(target, ast.Attribute) and isinstance(holder, ast.ClassDef):
                    yield f"{dotted}.{holder.name}.{target.attr}"
                elif isinstance(target, ast.Name) and isinstance(holder, ast.FunctionDef):
                    yield f"{dotted}.{target.id}"


def _starters() -> Iterator[str]:
    """Yield the files that start threads."""
    for path, module in _modules():
        calls = {_called(node) for node in ast.walk(module) if isinstance(node, ast.Call)}
        if calls & {"Thread", "ThreadPoolExecutor", "to_thread"}:
            yield str(path)


def _rows(header: str) -> list[list[str]]:
    """Return the rows of all tables with this first column."""
    tables = [part.split("\n\n")[0].splitlines()[2:] for part in PAGE.split(f"\n{header}")[1:]]
    return [[cell.strip() for cell in row.strip("|").split("|")] for table in tables for row in table]


def test_every_thread_is_on_the_page_with_the_module_that_starts_it() -> None:
    shown = {(name, file.strip("`")) for name, file, *_ in _rows("| thread |")}
    found = {(f"`{name}`", file) for name, file in _threads()}
    assert found == {row for row in shown if row[0].startswith("`")}
    assert all((SOURCES / file).exists() for _, file in shown)


def test_every_file_that_starts_threads_is_on_the_page() -> None:
    shown = {file.strip("`") for _, file, *_ in _rows("| thread |")}
    ways = {"node/loops.py", "adapters/gpu/deadline.py"}  # by which the files on the page start theirs
    packages = {str(Path(file).parent) for file in shown if file.endswith("__init__.py")}
    found = {file for file in _starters() if str(Path(file).parent) not in packages}
    assert found - ways <= shown


def test_every_lock_is_on_the_page_and_every_lock_on_the_page_is_there() -> None:
    shown = [name.strip("`") for name, *_ in _rows("| lock |")]
    assert sorted(shown) == sorted(set(_locks()))


def test_files_that_the_page_names_are_there() -> None:
    for name in re.findall(r"`((?:agent|kubernetes|tests)/[\w/]+\.py)`", PAGE):
        assert (SOURCES / name).is_file() or (ROOT / name).is_file(), name
