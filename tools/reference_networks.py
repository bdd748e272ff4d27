"""Page of the objects of tenant networks: their fields from ``model.network``, and the bounds on their number."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from calabash.model.addresses import Address, Network
from calabash.model.network import KINDS, PATH_PARTS, NetworkKind, SecurityRule
from calabash.model.network_services import Backend, HealthCheck
from calabash.net.checks.limits import PER_VPC, POOL

PARTS: tuple[type, ...] = (SecurityRule, Backend, HealthCheck)
_NAMES = {1: "NAME", 2: "VPC/NAME", 3: "VPC/SUBNET/NAME"}
_WORDS: dict[Any, str] = {
    Address: "address",
    Network: "range",
    str: "text",
    int: "number",
    float: "number",
    bool: "true, false",
}


INTRODUCTION = (
    "What stands under `spec` in YAML and in the API; the name stands beside it, as `name`. What is left empty, and numbers",
    "that are 0, are allocated when the object is made and stay; what cannot change is refused with another value.\n",
)


def networks_page() -> str:
    """Return the page: one heading for each kind and each part of one, with its docstring and fields."""
    lines = ["# Objects of tenant networks\n", *INTRODUCTION]
    lines += ["| kind | name | most in a VPC | most in the pool |", "|---|---|---:|---:|"]
    for kind in NetworkKind:
        counts = (f"{most[kind]:,}" if kind in most else "" for most in (PER_VPC, POOL))
        lines.append(f"| [{kind}](#{kind}) | `{_NAMES[PATH_PARTS[kind]]}` | {' | '.join(counts)} |")
    for noun, kind in KINDS.items():
        lines += ["", f"## {kind}\n", *_section(noun)]
    for part in PARTS:
        lines += ["", f"## {part.__name__}\n", *_section(part)]
    return "\n".join(lines) + "\n"


def _section(noun: type) -> Iterator[str]:
    text = inspect.cleandoc(noun.__doc__ or "").replace("``", "`")
    about, _, arguments = text.partition("\nArgs:\n")
    yield f"{about.strip()}\n"
    meanings = [line.strip() for line in inspect.cleandoc(arguments).splitlines() if line.strip()]
    if meanings:
        yield "\n".join(f"* {line}" if _begins(line, noun) else f"  {line}" for line in meanings) + "\n"
    yield "| field | is | left out |"
    yield "|---|---|---|"
    hints = typing.get_type_hints(noun)
    for field in dataclasses.fields(noun):
        if field.name != "name":
            yield f"| `{field.name}` | {_kind(hints[field.name])} | {_default(field)} |"


def _begins(line: str, noun: type) -> bool:
    """Return True if a line begins the description of fields, False if it continues one."""
    names = line.partition(":")[0].split(", ")
    return set(names) <= {field.name for field in dataclasses.fields(noun)}


def _kind(hint: Any) -> str:
    if hint in _WORDS:
        return _WORDS[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return (
            f"list of {_kind(arguments[0])}"
            if arguments[-1] is Ellipsis
            else f"{len(arguments)} of {_kind(arguments[0])}"
        )
    if origin in (typing.Union, types.UnionType):
        left = tuple(argument for argument in arguments if argument is not type(None))
        return _kind(typing.Union[left])  # noqa: UP007 - of as many as there are
    if issubclass(hint, StrEnum):
        return ", ".join(f"`{word}`" for word in hint)
    return f"[{hint.__name__}](#{hint.__name__.lower()})"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "it must be there"
    value = field.default if field.default is not dataclasses.MISSING else None
    return "" if value in (None, "", ()) else f"`{str(value).lower() if isinstance(value, bool) else value}`"
