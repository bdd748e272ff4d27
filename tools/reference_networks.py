"""Page of the objects of tenant networks: their fields from ``model.network``, and the bounds on their number."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.inspect import (
    BoolType,
    CustomType,
    EnumType,
    Field,
    FloatType,
    IntType,
    NoneType,
    StrType,
    StructType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from calabash.model.addresses import Address, Network
from calabash.model.network import KINDS, PATH_PARTS, NetworkKind, SecurityRule
from calabash.model.network_services import Backend, HealthCheck
from calabash.net.checks.limits import PER_VPC, POOL

PARTS: tuple[type, ...] = (SecurityRule, Backend, HealthCheck)
_NAMES = {1: "NAME", 2: "VPC/NAME", 3: "VPC/SUBNET/NAME"}
_WORDS: dict[Any, str] = {
    Address: "address",
    Network: "range",
    StrType: "text",
    IntType: "number",
    FloatType: "number",
    BoolType: "true, false",
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
    for field in _fields(noun):
        if field.name != "name":
            yield f"| `{field.name}` | {_kind(field.type)} | {_default(field)} |"


def _fields(noun: type) -> tuple[Field, ...]:
    described = type_info(noun)
    assert isinstance(described, StructType)
    return described.fields


def _begins(line: str, noun: type) -> bool:
    """Return True if a line begins the description of fields, False if it continues one."""
    names = line.partition(":")[0].split(", ")
    return set(names) <= {field.name for field in _fields(noun)}


def _kind(wanted: Type) -> str:
    match wanted:
        case VarTupleType(item_type=item):
            return f"list of {_kind(item)}"
        case TupleType(item_types=items):
            return f"{len(items)} of {_kind(items[0])}"
        case UnionType(types=types):
            return _kind(next(one for one in types if not isinstance(one, NoneType)))
        case EnumType(cls=words):
            return ", ".join(f"`{word}`" for word in words)
        case StructType(cls=noun):
            return f"[{noun.__name__}](#{noun.__name__.lower()})"
    return _WORDS[wanted.cls if isinstance(wanted, CustomType) else type(wanted)]


def _default(field: Field) -> str:
    if field.required:
        return "it must be there"
    value = None if isinstance(field.default, msgspec.Struct) else field.default
    return "" if value in (None, "", ()) else f"`{str(value).lower() if isinstance(value, bool) else value}`"
