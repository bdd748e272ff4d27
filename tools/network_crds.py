"""Definitions (CRDs) of tenant networks, generated from the classes in ``model.network``; written by ``tools.chart``.

A schema holds fields and their types. The rules for addresses, and whether an address is free, are checked by the network
controller, which reports the result in the condition ``Valid``.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import inspect

from calabash.adapters.kube.objects.network_resources import NETWORK_KINDS
from calabash.model.network import KINDS, PATH_PARTS

ADDRESS_CHARACTERS_MAX = 64
_SCALARS: dict[type, dict[str, Any]] = {
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer", "format": "int64", "minimum": 0},
    inspect.FloatType: {"type": "number", "format": "double", "minimum": 0},
    inspect.CustomType: {"type": "string", "maxLength": ADDRESS_CHARACTERS_MAX},  # an address or a range
}


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
            "spec": _object(cast("inspect.StructType", inspect.type_info(noun)), without=("name",)),
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


def _object(noun: inspect.StructType, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    fields = [field for field in noun.fields if field.name not in without]
    required = [field.name for field in fields if field.required]
    found: dict[str, Any] = {"type": "object", "properties": {f.name: _value(f.type) for f in fields}}
    return found | ({"required": required} if required else {})


def _value(wanted: inspect.Type) -> dict[str, Any]:
    if isinstance(wanted, inspect.UnionType):
        wanted = next(one for one in wanted.types if not isinstance(one, inspect.NoneType))
    match wanted:
        case inspect.VarTupleType():
            return {"type": "array", "items": _value(wanted.item_type), "maxItems": wanted.max_length}
        case inspect.TupleType(item_types=items):
            return {"type": "array", "items": _value(items[0]), "maxItems": len(items), "minItems": len(items)}
        case inspect.StructType():
            return _object(wanted)
        case inspect.EnumType():
            return {"type": "string", "enum": [str(one) for one in wanted.cls]}
        case inspect.StrType():
            return {"type": "string", "maxLength": wanted.max_length}
    return dict(_SCALARS[type(wanted)])


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
