"""Conversion of network objects to and from plain data, as in JSON, YAML and the database.

Decoding is strict: an unknown field, a value of another type, and a value above the limits are errors that name the field
(``rules[2].peer``). Addresses and ranges are text. The name is not part of the spec.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

from calabash.model.addresses import Address, Network, check_path, parse_address, parse_mac, parse_network
from calabash.model.errors import CalabashError
from calabash.model.network import KINDS, PATH_PARTS, NetworkKind, NetworkObject

ITEMS_MAX = 1024  # items of one list
TEXT_MAX = 255
NUMBER_MAX = 1 << 50
_OBJECT_TYPES = {kind: object_type for object_type, kind in KINDS.items()}
_MISSING = object()
_ADDRESSES: dict[Any, Any] = {Address: parse_address, Network: parse_network}


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
    if not isinstance(spec, Mapping):
        raise CalabashError(f"{kind} {name}: spec is not a map", hint="spec: {FIELD: VALUE, ...}")
    found: NetworkObject = _object(_OBJECT_TYPES[kind], {**spec, "name": name}, f"{kind} {name}", "")
    if "name" in spec:
        raise CalabashError(f"{kind} {name}: the name does not belong in spec", hint="remove name from spec")
    return found


def encode(item: NetworkObject) -> dict[str, Any]:
    """Return all fields except the name, as values of JSON."""
    found: dict[str, Any] = _plain(item)
    del found["name"]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (IPv4Address, IPv6Address, IPv4Network, IPv6Network, StrEnum)):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _field_types(typing.cast("type", type(value)))}
    return value


@functools.cache
def _field_types(object_type: type) -> dict[str, Any]:
    hints = typing.get_type_hints(object_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(object_type)}


@functools.cache
def _required_fields(object_type: type) -> frozenset[str]:
    none = dataclasses.MISSING
    return frozenset(f.name for f in dataclasses.fields(object_type) if f.default is none and f.default_factory is none)


def _object(object_type: type, given: Mapping[Any, Any], what: str, place: str) -> Any:
    known = _field_types(object_type)
    for name in given:
        if name not in known:
            raise CalabashError(
                f"{what}: unknown field {place}{str(name)[:40]!r}",
                hint=f"fields: {', '.join(n for n in known if place or n != 'name')}",
            )
    for name in sorted(_required_fields(object_type) - given.keys()):
        raise CalabashError(f"{what}: {place}{name} is missing", hint=_hint(known[name]))
    return object_type(**{name: _value(known[name], value, what, f"{place}{name}") for name, value in given.items()})


def _value(wanted: Any, value: Any, what: str, place: str) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted in _ADDRESSES and isinstance(value, str):
        return _ADDRESSES[wanted](value, f"{what}: {place}")
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        if value is None:
            return None
        left = tuple(a for a in arguments if a is not type(None))
        return _value(typing.Union[left], value, what, place)  # noqa: UP007 - built from a tuple of types
    if origin is tuple and isinstance(value, (list, tuple)):
        return _items(arguments, value, what, place)
    if dataclasses.is_dataclass(wanted) and isinstance(value, Mapping):
        return _object(typing.cast("type", wanted), value, what, f"{place}.")
    found = _scalar(wanted, value, what, place)
    if found is _MISSING:
        raise CalabashError(f"{what}: {place} is {_describe_value(value)}", hint=_hint(wanted))
    return found


def _items(arguments: tuple[Any, ...], value: Any, what: str, place: str) -> tuple[Any, ...]:
    if len(value) > ITEMS_MAX:
        raise CalabashError(f"{what}: {place} has {len(value)} items", hint=f"at most {ITEMS_MAX}")
    if arguments[-1] is not Ellipsis and len(value) != len(arguments):
        raise CalabashError(f"{what}: {place} has {len(value)} items, not {len(arguments)}", hint="like [443, 443]")
    return tuple(_value(arguments[0], one, what, f"{place}[{i}]") for i, one in enumerate(value))


def _scalar(wanted: Any, value: Any, what: str, place: str) -> Any:
    """Return the value converted to the wanted type, or ``_MISSING`` if it does not fit."""
    if isinstance(value, bool) or wanted is bool:
        return value if wanted is bool and isinstance(value, bool) else _MISSING
    if wanted in (int, float):
        number = isinstance(value, (int, wanted)) and abs(value) <= NUMBER_MAX  # also rejects NaN
        return wanted(value) if number else _MISSING
    if not isinstance(value, str) or len(value) > TEXT_MAX or not value.isprintable():
        return _MISSING
    if isinstance(wanted, type) and issubclass(wanted, StrEnum):
        return wanted(value) if value in set(wanted) else _MISSING
    return parse_mac(value, f"{what}: mac") if place == "mac" and value else value if wanted is str else _MISSING


def _describe_value(value: object) -> str:
    if isinstance(value, (str, bool, int, float)) or value is None:
        return repr(value)[:60]
    return {"dict": "a map", "list": "a list"}.get(type(value).__name__, f"a {type(value).__name__}")


_HINTS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: f"text in one line, at most {TEXT_MAX} characters",
    Address: "an address as text, like 10.0.1.11",
    Network: "a range as text, like 10.0.0.0/16",
}


def _hint(wanted: Any) -> str:
    """Describe the values that the type accepts."""
    if wanted in _HINTS:
        return _HINTS[wanted]
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is tuple:
        return f"a list of: {_hint(arguments[0])}"
    if origin in (typing.Union, types.UnionType):
        left = tuple(a for a in arguments if a is not type(None))
        return _hint(typing.Union[left]) + ", or null"  # noqa: UP007 - built from a tuple of types
    if issubclass(wanted, StrEnum):
        return f"one of: {', '.join(wanted)}"
    return f"a map of: {', '.join(_field_types(wanted))}"
