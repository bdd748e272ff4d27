"""Conversion of network objects to and from plain data, as in JSON, YAML and the database.

Decoding is strict: an unknown field, a value of another type, and a value above the limits are errors that name the field
(``rules[2].peer``). msgspec checks them against the classes of ``model.network``; ``_refusal`` turns its errors into those of
the product. Addresses and ranges are text. The name is not part of the spec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import inspect

from calabash.model.addresses import Address, Network, check_path, parse_address, parse_mac, parse_network
from calabash.model.errors import CalabashError
from calabash.model.network import KINDS, PATH_PARTS, NetworkKind, NetworkObject, Port
from calabash.model.strict_types import ITEMS_MAX, TEXT_MAX

_OBJECT_TYPES: dict[NetworkKind, type[NetworkObject]] = {kind: object_type for object_type, kind in KINDS.items()}
_SHAPES: dict[NetworkKind, Any] = {kind: GenericAlias(tuple, (noun,)) for kind, noun in _OBJECT_TYPES.items()}
_PARSERS: dict[Any, Callable[..., Any]] = {Address: parse_address, Network: parse_network}
_PATH = re.compile(r" - at (?:`key` in )?`\$\[0\](?P<path>(?:\.\w+|\[\d+\])*)`\Z")


def parse_kind(word: object) -> NetworkKind:
    """Return the kind that a word such as "subnet" names. Raises CalabashError if there is no such kind."""
    try:
        return NetworkKind(str(word))
    except ValueError:
        raise CalabashError(f"kind {str(word)[:40]!r} is unknown", hint=f"one of: {', '.join(NetworkKind)}") from None


def decode(kind: NetworkKind, name: object, spec: object) -> NetworkObject:
    """Build an object from its kind, name and spec. Raises CalabashError that names the invalid field."""
    if not isinstance(name, str):
        raise CalabashError(
            f"{kind} without a name", hint="name: " + "/".join(("red", "a", "web1")[: PATH_PARTS[kind]])
        )
    check_path(name, PATH_PARTS[kind], f"{kind} name")
    what = f"{kind} {name}"
    if not isinstance(spec, Mapping):
        raise CalabashError(f"{what}: spec is not a map", hint="spec: {FIELD: VALUE, ...}")
    if "name" in spec:
        raise CalabashError(f"{what}: the name does not belong in spec", hint="remove name from spec")
    values = {**spec, "name": name}
    try:  # in a tuple, so that every error has a path
        found: NetworkObject = msgspec.convert((values,), _SHAPES[kind], dec_hook=_parse_text)[0]
    except msgspec.ValidationError as error:
        raise _refusal(_OBJECT_TYPES[kind], values, str(error), what) from None
    if isinstance(found, Port) and found.mac:
        return msgspec.structs.replace(found, mac=parse_mac(found.mac, f"{what}: mac"))
    return found


def encode(item: NetworkObject) -> dict[str, Any]:
    """Return all fields except the name, as values of JSON."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(item, enc_hook=str))
    del found["name"]
    return found


def _parse_text(wanted: type, value: object) -> Any:
    """Parse an address or range for msgspec. Raises ValueError, to which msgspec adds the path of the field."""
    if not isinstance(value, str):
        raise ValueError("not text")
    try:
        return _PARSERS[wanted](value)
    except CalabashError as error:
        raise ValueError(error.message) from error


def _refusal(object_type: type, values: Mapping[str, Any], problem: str, what: str) -> CalabashError:
    """Return the error for a spec that msgspec refused.

    Args:
        object_type: class of the object.
        values: its spec.
        problem: the message of msgspec, such as "Expected `int`, got `str` - at `$[0].rules[2].ports[0]`".
        what: kind and name of the object.
    """
    match = _PATH.search(problem)
    place = match["path"].removeprefix(".") if match else ""
    wanted, value = _at(inspect.type_info(object_type), values, place)
    if isinstance(wanted, inspect.StructType) and isinstance(value, Mapping):
        known, inside = {field.name: field.type for field in wanted.fields}, f"{place}." if place else ""
        for name in value:
            if name not in known:
                listed = ", ".join(n for n in known if inside or n != "name")
                return CalabashError(f"{what}: unknown field {inside}{str(name)[:40]!r}", hint=f"fields: {listed}")
        missing = next(field.name for field in wanted.fields if field.required and field.name not in value)
        return CalabashError(f"{what}: {inside}{missing} is missing", hint=_hint(known[missing]))
    if isinstance(wanted, (inspect.VarTupleType, inspect.TupleType)) and isinstance(value, (list, tuple)):
        exact = len(wanted.item_types) if isinstance(wanted, inspect.TupleType) else 0
        count = f"{len(value)} items, not {exact}" if exact else f"{len(value)} items"
        return CalabashError(
            f"{what}: {place} has {count}", hint="like [443, 443]" if exact else f"at most {ITEMS_MAX}"
        )
    if isinstance(wanted, inspect.CustomType) and isinstance(value, str):
        try:
            _PARSERS[wanted.cls](value, f"{what}: {place}")
        except CalabashError as error:
            return error
    return CalabashError(f"{what}: {place} is {_describe_value(value)}", hint=_hint(wanted))


def _at(wanted: inspect.Type, value: Any, place: str) -> tuple[inspect.Type, Any]:
    """Return the type and the value of a field within an object.

    Args:
        wanted: type of the object.
        value: the object as plain data.
        place: path of the field, such as ``rules[2].peer``.

    Returns:
        The type of the field, without None if the field is optional; and the value of the field.
    """
    for name, number in re.findall(r"(\w+)|\[(\d+)\]", place):
        if isinstance(wanted, inspect.StructType):
            wanted, value = next(field.type for field in wanted.fields if field.name == name), value[name]
        elif isinstance(wanted, inspect.VarTupleType):
            wanted, value = wanted.item_type, value[int(number)]
        elif isinstance(wanted, inspect.TupleType):
            wanted, value = wanted.item_types[int(number)], value[int(number)]
        if isinstance(wanted, inspect.UnionType):
            wanted = next(one for one in wanted.types if not isinstance(one, inspect.NoneType))
    return wanted, value


def _describe_value(value: object) -> str:
    if isinstance(value, (str, bool, int, float)) or value is None:
        return repr(value)[:60]
    return {"dict": "a map", "list": "a list"}.get(type(value).__name__, f"a {type(value).__name__}")


_HINTS: dict[Any, str] = {
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: f"text in one line, at most {TEXT_MAX} characters",
    Address: "an address as text, like 10.0.1.11",
    Network: "a range as text, like 10.0.0.0/16",
}


def _hint(wanted: inspect.Type) -> str:
    """Return the hint of an error: a text about the values that a field of this type accepts."""
    if isinstance(wanted, inspect.VarTupleType):
        return f"a list of: {_hint(wanted.item_type)}"
    if isinstance(wanted, inspect.TupleType):
        return f"a list of: {_hint(wanted.item_types[0])}"
    if isinstance(wanted, inspect.EnumType):
        return f"one of: {', '.join(wanted.cls)}"
    if isinstance(wanted, inspect.StructType):
        return f"a map of: {', '.join(field.name for field in wanted.fields)}"
    return _HINTS[wanted.cls if isinstance(wanted, inspect.CustomType) else type(wanted)]
