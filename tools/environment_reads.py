"""Find the environment variables that the product reads, in the syntax trees of Python and in the C sources.

A read is a use of ``os.environ`` other than an assignment or a deletion, ``os.getenv``, the argument ``envvar`` of an
option, and ``getenv`` in C. A name that is a constant is replaced by its value. A name in a lower-case variable is one of a
list that a process hands to another; such variables count where they are used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_READING = frozenset({"get", "pop", "setdefault"})
_GETENV = re.compile(r'\b(?:secure_)?getenv\(\s*("\w+"|[A-Z]\w*)')
_DEFINITION = re.compile(r'^#define (\w+) "(\w+)"', re.MULTILINE)
_FORWARDED = Path("native", "remote", "wire", "environment.h")  # the variables that workers get from programs
_FORWARDED_NAME = re.compile(r'X\(("\w+")\)')


def read_variables(root: Path = ROOT) -> set[str]:
    """Return the names of all variables that the product reads."""
    trees = [ast.parse(path.read_text()) for path in sorted((root / "src" / "calabash").rglob("*.py"))]
    constants = {name: value for tree in trees for name, value in _constants(tree).items()}
    python = {name for tree in trees for name in variables_of_module(tree, constants)}
    sources = [path.read_text() for path in sorted((root / "native").rglob("*.[ch]"))]
    definitions = dict(pair for text in sources for pair in _DEFINITION.findall(text))
    given = {name for text in sources for name in _GETENV.findall(text)}
    given |= set(_FORWARDED_NAME.findall((root / _FORWARDED).read_text()))
    native = {name.strip('"') if name.startswith('"') else definitions[name] for name in given}
    return python | native


def variables_of_module(tree: ast.Module, constants: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that one module reads. Raises ValueError for a name that is neither a string nor a constant."""
    known = {**constants, **_constants(tree)}
    for node in ast.walk(tree):
        name = _name_node(node)
        if name is None:
            continue
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value
        elif isinstance(name, ast.Name | ast.Attribute):
            constant = name.id if isinstance(name, ast.Name) else name.attr
            if not constant.islower():
                yield known[constant]
        else:
            raise ValueError(f"cannot find out which variable is read: {ast.unparse(node)}")


def _constants(tree: ast.Module) -> dict[str, str]:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update({target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)})
    return found


def _is_environment(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _name_node(node: ast.AST) -> ast.expr | None:
    """Return the expression of the variable's name if the node reads one."""
    if isinstance(node, ast.Subscript) and _is_environment(node.value) and isinstance(node.ctx, ast.Load):
        return node.slice
    if isinstance(node, ast.Compare) and any(_is_environment(right) for right in node.comparators):
        return node.left
    if isinstance(node, ast.keyword) and node.arg == "envvar":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        called = node.func
        if called.attr == "getenv" or (called.attr in _READING and _is_environment(called.value)):
            return node.args[0]
    return None
