"""Definitions (CRDs) of tenant networks, generated from the classes in ``model.network``; written by ``tools.chart``.

A schema holds fields and their types. The rules for addresses, and whether an address is free, are checked by the network
controller, which reports the result in the condition ``Valid``.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import StrEnum
from typing import Any

from calabash.adapters.kube.objects.network_resources import NETWORK_KINDS
from calabash.model.addresses import Address, Network
from calabash.model.network import KINDS, PATH_PARTS
from calabash.net.objects.specs import ITEMS_MAX, TEXT_MAX

ADDRESS_CHARACTERS_MAX = 64


def definition(noun: type) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a class of ``model.network``."""
    kind = NETWORK_KINDS[KINDS[noun]]
    parts = PATH_PARTS[KINDS[noun]]
    group, _, version = kind.api_version.partition("/")
    example = ".".join(("red", "a", "web1")[:parts])
    schema = {
        "description": f"{_first_line(noun)} Named {example}, which other objects call {example.replace('.', '/')}.",
        "type": "object",
        "x-kubernetes-validations": [
            {
                "rule": f"self.metadata.name.split('.').size() == {parts}",
                "message": f"its name has {parts} part{'s' if parts > 1 else ''}, with dots between, as in {example}",
            }
        ],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _object(noun, without=("name",)),
            "status": _status(),
        },
    }
    columns = [
        {"name": "Valid", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Valid")].status'},
        {"name": "Realized", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Realized")].status'},
        {"name": "Message", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Valid")].message'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}"},
        "spec": {
            "group": group,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "categories": ["calabash-networks"],
            },
            "scope": "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _first_line(noun: type) -> str:
    return " ".join((noun.__doc__ or "").strip().split("\n\n")[0].split()).replace("``", "")


def _object(noun: type, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    hints = typing.get_type_hints(noun)
    fields = [field for field in dataclasses.fields(noun) if field.name not in without]
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    found: dict[str, Any] = {"type": "object", "properties": {f.name: _value(hints[f.name]) for f in fields}}
    return found | ({"required": required} if required else {})


def _value(hint: Any) -> dict[str, Any]:
    if hint in (Address, Network):
        return {"type": "string", "maxLength": ADDRESS_CHARACTERS_MAX}
    if isinstance(hint, types.UnionType):
        plain = [part for part in typing.get_args(hint) if part is not type(None)]
        return _value(plain[0] if len(plain) == 1 else Address if plain[0] in typing.get_args(Address) else Network)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)
        items = {"type": "array", "items": _value(inner[0]), "maxItems": ITEMS_MAX}
        return items if inner[-1] is Ellipsis else items | {"minItems": len(inner), "maxItems": len(inner)}
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast(type, hint))
    if issubclass(hint, StrEnum):
        return {"type": "string", "enum": [str(one) for one in hint]}
    plain_types: dict[type, dict[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "format": "int64", "minimum": 0},
        float: {"type": "number", "format": "double", "minimum": 0},
        str: {"type": "string", "maxLength": TEXT_MAX},
    }
    return dict(plain_types[hint])


def _status() -> dict[str, Any]:
    condition = {
        "type": {"type": "string", "maxLength": 64},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string", "maxLength": 64},
        "message": {"type": "string", "maxLength": 1024},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64"},
    }
    return {
        "description": "Written by the server.",
        "type": "object",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "completed": {
                "description": "all fields, with what was allocated",
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "conditions": {
                "type": "array",
                "maxItems": 8,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type"], "properties": condition},
            },
        },
    }
