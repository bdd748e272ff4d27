"""Rules of `tools.language` for one Python module: openings, words of the glossary, generic names, Raises and Args."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

GLOSSARY = Path(__file__).with_name("glossary.toml")
_WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WORD_OF_TEXT = re.compile(r"[A-Za-z]+(?:'s)?")
_CODE_IN_TEXT = re.compile(r"``.*?``|`[^`\n]*`|--[\w-]+|\S*/\S*", re.DOTALL)
_FIRST_WORD = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)*")
_ARGS = re.compile(r"^(?P<indent> *)Args:\n(?P<body>(?:(?P=indent) +\S.*\n|\s*\n)+)", re.MULTILINE)
_DOCUMENTED = re.compile(r"([*\w]+(?:, [*\w]+)*)(?: \([^)]*\))?:(?: |$)")
_RAISES = re.compile(r"\braises?\b|CalabashError", re.IGNORECASE)
_COMMANDS = ("command", "group")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A place that breaks a rule; prints as ``path:line: message; hint: ...``."""

    path: str
    line: int
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}; hint: {self.hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glossary:
    """Words that are refused, each with the hint that says what to write instead.

    Args:
        openings: first words of a docstring, in lower case.
        function_openings: the same, for docstrings of functions only.
        names: words refused in identifiers; a word may be two with a space between.
        texts: words refused in docstrings, comments, messages of the product and names of tests.
        allowed: shell patterns of identifiers that are not checked for words.
        functions: names that no public function has.
        modules: names that no module has.
    """

    openings: Mapping[str, str]
    function_openings: Mapping[str, str]
    names: Mapping[str, str]
    texts: Mapping[str, str]
    allowed: tuple[str, ...]
    functions: frozenset[str]
    modules: frozenset[str]


def read_glossary(path: Path = GLOSSARY) -> Glossary:
    """Read the table of words."""
    table = tomllib.loads(path.read_text())
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for term in table.get("term", []):
        hint = f"the term is {term['term']}: {term['meaning']}"
        for word in term.get("refused", []):
            texts.update(dict.fromkeys(_forms(word), hint))
        for word in term.get("refused-in-names", []):
            names.update(dict.fromkeys(_forms(word), hint))
    for vague in table.get("vague", []):
        for word in vague["words"]:
            texts.update(dict.fromkeys(_forms(word), vague["write"]))
    generic = table.get("generic", {})
    openings: dict[str, dict[str, str]] = {"": {}, "functions": {}}
    for opening in table.get("opening", []):
        openings[opening.get("only", "")].update(dict.fromkeys(opening["words"], opening["write"]))
    return Glossary(
        openings=openings[""],
        function_openings=openings[""] | openings["functions"],
        names=texts | names,
        texts=texts,
        allowed=tuple(pattern for allowed in table.get("allowed", []) for pattern in allowed["names"]),
        functions=frozenset(generic.get("functions", [])),
        modules=frozenset(generic.get("modules", [])),
    )


def _forms(word: str) -> tuple[str, str, str]:
    return word, f"{word}s", f"{word}es"


def check_module(path: str, text: str, glossary: Glossary, *, is_product: bool = True) -> Iterator[Finding]:
    """Yield the findings of one module, in no order.

    Args:
        path: shown in findings; its last part is checked as the module's name.
        text: the module's source.
        glossary: the words that are refused.
        is_product: also check messages, and that public functions name the CalabashError that they raise.
    """
    tree = ast.parse(text)
    yield from _check_module_name(path, glossary)
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            yield from _check_docstring(path, node, glossary)
        if isinstance(node, ast.ClassDef | Function):
            yield from _check_arguments(path, node)
    for function in _public_functions(tree):
        yield from _check_function_name(path, function, glossary)
        if is_product:
            yield from _check_raises(path, function)
    for name, line in set(_defined_names(tree)):
        is_sentence = name.startswith(("test_", "Test"))
        yield from _check_name(path, line, name, glossary.texts if is_sentence else glossary.names, glossary)
    yield from _check_comments(path, text, glossary)
    if is_product:
        yield from _check_messages(path, tree, glossary)


def _check_module_name(path: str, glossary: Glossary) -> Iterator[Finding]:
    stem = Path(path).stem
    if stem in glossary.modules:
        yield Finding(
            path, 1, f"module name {stem!r} says nothing without its folder", "name what the module holds or does"
        )
    yield from _check_name(path, 1, stem, glossary.texts if stem.startswith("test_") else glossary.names, glossary)


def _check_docstring(path: str, node: Documented, glossary: Glossary) -> Iterator[Finding]:
    text = ast.get_docstring(node, clean=False)
    if not text:
        return
    line = node.body[0].lineno
    first = _FIRST_WORD.match(text.lstrip())
    openings = glossary.function_openings if isinstance(node, Function) else glossary.openings
    if first is not None and first[0].lower() in openings:
        message = f"docstring of {_shown(node)} begins with {first[0]!r}"
        yield Finding(path, line, message, openings[first[0].lower()])
    yield from _check_text(path, line, text, "docstring", glossary)


def _check_text(path: str, line: int, text: str, kind: str, glossary: Glossary) -> Iterator[Finding]:
    without_code = _CODE_IN_TEXT.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    for offset, row in enumerate(without_code.split("\n")):
        words = [word.removesuffix("'s").lower() for word in _WORD_OF_TEXT.findall(row)]
        for refused in _refused(words, glossary.texts):
            yield Finding(path, line + offset, f"{kind} uses {refused!r}", glossary.texts[refused])


def _check_name(path: str, line: int, name: str, words: Mapping[str, str], glossary: Glossary) -> Iterator[Finding]:
    if any(fnmatchcase(name.strip("_"), pattern) for pattern in glossary.allowed):
        return
    for refused in _refused([word.lower() for word in _WORD_OF_NAME.findall(name)], words):
        yield Finding(path, line, f"name {name!r} uses {refused!r}", words[refused])


def _refused(words: list[str], refused: Mapping[str, str]) -> Iterator[str]:
    yield from (word for word in dict.fromkeys(words) if word in refused)
    yield from (pair for pair in dict.fromkeys(map(" ".join, itertools.pairwise(words))) if pair in refused)


def _check_comments(path: str, text: str, glossary: Glossary) -> Iterator[Finding]:
    rows = text.split("\n")
    if not any("#" in row and any(_refused(re.findall(r"[a-z]+", row.lower()), glossary.texts)) for row in rows):
        return  # nothing to find: saves the time of the tokenizer
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _check_text(path, token.start[0], token.string, "comment", glossary)


def _check_messages(path: str, tree: ast.Module, glossary: Glossary) -> Iterator[Finding]:
    """Yield the findings in string constants of several words: error messages, hints and help texts."""
    documented = (
        node for node in ast.walk(tree) if isinstance(node, Documented) and ast.get_docstring(node, clean=False)
    )
    docstrings = {id(node.body[0].value) for node in documented if isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            text = node.value if isinstance(node.value, str) else ""
            if " " in text.strip():
                yield from _check_text(path, node.lineno, text, "message", glossary)


def _check_function_name(path: str, node: Function, glossary: Glossary) -> Iterator[Finding]:
    if node.name in glossary.functions:
        yield Finding(
            path, node.lineno, f"function name {node.name!r} cannot be searched for", "add the object to the verb"
        )


def _is_command(node: Function) -> bool:
    """Return True if the function is a command of the command line, so that its name or docstring is what users see."""
    calls = [decorator.func for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in _COMMANDS for call in calls)


def _check_arguments(path: str, node: ast.ClassDef | Function) -> Iterator[Finding]:
    text = ast.get_docstring(node)
    section = _ARGS.search(f"{text}\n") if text else None
    known = _parameters(node) if section is not None else None
    if section is None or known is None:
        return
    rows = [row for row in section["body"].split("\n") if row.strip()]
    indent = len(rows[0]) - len(rows[0].lstrip())
    for row in rows:
        documented = _DOCUMENTED.match(row[indent:]) if row[:indent].isspace() else None
        for name in documented[1].split(", ") if documented else ():
            if name.lstrip("*") not in known:
                message = f"Args of {_shown(node)} names {name!r}, which is no parameter"
                yield Finding(path, node.body[0].lineno, message, "name the parameter as the signature does")


def _parameters(node: ast.ClassDef | Function) -> set[str] | None:
    """Return the names of a function's parameters, or of a class's fields; None if a base class may have more."""
    if isinstance(node, Function):
        a = node.args
        found = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(extra for extra in (a.vararg, a.kwarg) if extra)]
        return {argument.arg for argument in found}
    makers = [f for f in node.body if isinstance(f, Function) and f.name in ("__init__", "__new__")]
    if makers:
        return set().union(*(_parameters(maker) or set() for maker in makers))
    if node.bases and not all(ast.unparse(base) in ("Protocol", "NamedTuple", "msgspec.Struct") for base in node.bases):
        return None
    return {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def _public_functions(node: ast.Module | ast.ClassDef) -> Iterator[Function]:
    """Yield the public functions of a module and methods of its public classes, without commands."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            if isinstance(child, ast.ClassDef):
                yield from _public_functions(child)
            elif not _is_command(child):
                yield child


def _check_raises(path: str, node: Function) -> Iterator[Finding]:
    raised = [reason for statement in _own_statements(node) for reason in _raised_reason(statement)]
    if not raised:
        return
    text = ast.get_docstring(node) or ""
    if not _RAISES.search(text) and not any(reason and reason in text for reason in raised):
        message = f"docstring of {_shown(node)} does not say that it raises CalabashError"
        yield Finding(path, node.lineno, message, 'add "Raises:" or "Raises REASON if ..."')


def _own_statements(node: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside it."""
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        found = waiting.pop()
        if not isinstance(found, Function | ast.Lambda | ast.ClassDef):
            yield found
            waiting.extend(ast.iter_child_nodes(found))


def _raised_reason(node: ast.AST) -> Iterator[str]:
    """Yield the reason's name if a node raises a new CalabashError, or "" if the reason is not a constant."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func) == "CalabashError":
        first = node.exc.args[0] if node.exc.args else None
        yield first.attr if isinstance(first, ast.Attribute) else ""


def _defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


def _shown(node: Documented) -> str:
    return "the module" if isinstance(node, ast.Module) else node.name
