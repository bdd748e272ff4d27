"""Bodies as they go over the wire: pages, object bodies, options; and their strict reading."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic

import msgspec

from calabash.model.errors import Reason
from calabash.seams.kube.errors import KubeError, read_status
from calabash.seams.kube.meta import Kind, KubeObject, T
from calabash.seams.kube.protocol import PatchStyle

PATCH_TYPES: Mapping[PatchStyle, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}


# msgspec learns a type when its first decoder is made, and types share others: two threads that learn at once crash it.
_LEARNING = threading.Lock()


class ListPageMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Where a page is in its list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list."""

    metadata: ListPageMeta
    items: tuple[T, ...] | None = ()


@lru_cache(maxsize=128)
def object_decoder(type_: type[KubeObject]) -> msgspec.json.Decoder[Any]:
    """Reads one object."""
    with _LEARNING:
        return msgspec.json.Decoder(type_)


@lru_cache(maxsize=128)
def page_decoder(type_: type[KubeObject]) -> msgspec.json.Decoder[Any]:
    """Reads a page of objects."""
    with _LEARNING:
        return msgspec.json.Decoder(ListPage[type_])  # type: ignore[valid-type]


class Resource(msgspec.Struct, frozen=True):
    """A kind that the API server has, by its plural."""

    name: str


class ResourceList(msgspec.Struct, frozen=True):
    """The kinds of one API group and version."""

    resources: tuple[Resource, ...] = ()


def selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    """The query that selects."""
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in query.items() if value}


def whole(kind: Kind[T], obj: T | Mapping[str, Any]) -> bytes:
    """An object to be made."""
    value = dict(obj) if isinstance(obj, Mapping) else msgspec.to_builtins(obj)
    return msgspec.json.encode({"apiVersion": kind.api_version, "kind": kind.name, **value})


def delete_options(uid: str, grace_s: int | None) -> bytes:
    """How to delete."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return msgspec.json.encode(options)


def by_budget(answer_body: bytes) -> bool:
    """Whether a 429 is the word of a disruption budget and not of an overloaded server."""
    details = read_status(answer_body).details
    return details is not None and any(cause.reason == "DisruptionBudget" for cause in details.causes)


def decode(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw, asked: str) -> Any:
    """Read a body. Raises KubeError(API_DOWN) for what cannot be what was asked for."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        return _decode_without_nulls(decoder, body, asked)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise KubeError(f"{asked}: the answer cannot be read: {error}", reason=Reason.API_DOWN) from error


def _decode_without_nulls(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw, asked: str) -> Any:
    """Read a body in which lists or objects may be null, which some kinds write where they mean empty ones."""
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(body)), decoder.type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise KubeError(f"{asked}: the answer cannot be read: {error}", reason=Reason.API_DOWN) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value if one is not None]
    return value
