"""Encoding of requests to the API server and strict decoding of its objects, pages and events."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic

import msgspec

from calabash.adapters.kube.errors import KubeError, UnreadableObject, read_status
from calabash.adapters.kube.objects.meta import Kind, KubeObject, T
from calabash.adapters.kube.protocol import Listing, PatchStyle, SkippedObject
from calabash.adapters.kube.scanning import Span, elements, members, repaired
from calabash.model.errors import Reason

PATCH_TYPES: Mapping[PatchStyle, str] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}


_ERROR_MAX = 300
_PLAIN = re.compile(r"[-.:_A-Za-z0-9]{1,253}")
# msgspec's errors are ValueErrors, but RecursionError is none.
_UNREADABLE = (ValueError, RecursionError)


# msgspec analyses a type when its first decoder is made; two threads that analyse types with a common part at once crash.
_DECODER_LOCK = threading.Lock()


class ListPageMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Resource version of a list, and the token of its next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """Page of a list."""

    metadata: ListPageMeta
    items: tuple[T, ...] | None = ()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_EVENTS = msgspec.json.Decoder(_Event)
_PAGE_META = msgspec.json.Decoder(ListPageMeta)


@lru_cache(maxsize=128)
def object_decoder(type_: type[KubeObject]) -> msgspec.json.Decoder[Any]:
    """Return the decoder of one object of a type."""
    with _DECODER_LOCK:
        return msgspec.json.Decoder(type_)


@lru_cache(maxsize=128)
def page_decoder(type_: type[KubeObject]) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a page of objects of a type."""
    with _DECODER_LOCK:
        return msgspec.json.Decoder(ListPage[type_])  # type: ignore[valid-type]


class Resource(msgspec.Struct, frozen=True):
    """Kind that the API server serves, by its plural."""

    name: str


class ResourceList(msgspec.Struct, frozen=True):
    """Kinds of one API group and version."""

    resources: tuple[Resource, ...] = ()


def selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    """Return the query parameters of the selectors that are not empty."""
    query = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in query.items() if value}


def whole(kind: Kind[T], obj: T | Mapping[str, Any]) -> bytes:
    """Return the body that creates an object."""
    value = dict(obj) if isinstance(obj, Mapping) else msgspec.to_builtins(obj)
    return msgspec.json.encode({"apiVersion": kind.api_version, "kind": kind.name, **value})


def delete_options(uid: str, grace_s: int | None) -> bytes:
    """Return the body of a delete request.

    Args:
        uid: UID that the object must have; "" for any.
        grace_s: grace period in seconds; None for the object's own.
    """
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return msgspec.json.encode(options)


def by_budget(answer_body: bytes) -> bool:
    """Return True if a 429 comes from a disruption budget, and not from an overloaded server."""
    details = read_status(answer_body).details
    return details is not None and any(cause.reason == "DisruptionBudget" for cause in details.causes)


def decode(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw, asked: str) -> Any:
    """Decode a body. Raises KubeError(API_DOWN) if the body does not have the decoder's type.

    Args:
        asked: the call in messages, such as "GET pods".
    """
    try:
        return _read(decoder, bytes(body))
    except _UNREADABLE as error:
        raise KubeError(f"{asked}: the answer cannot be read: {error}", reason=Reason.API_DOWN) from error


def decode_object(kind: Kind[T], body: bytes | msgspec.Raw, asked: str) -> T:
    """Decode one object.

    Raises ``UnreadableObject`` if the object does not fit the type of its kind; the same call fails again then.
    Raises KubeError(API_DOWN) if the body is not an object.
    """
    text = bytes(body)
    try:
        found: T = _read(object_decoder(kind.type), text)
    except _UNREADABLE as error:
        skipped = _skipped(kind, text, error)
        if not skipped.name:
            raise KubeError(f"{asked}: the answer cannot be read: {error}", reason=Reason.API_DOWN) from error
        raise UnreadableObject(f"{asked}: {skipped.error}") from error
    return found


def decode_event(kind: Kind[T], text: bytes) -> T | SkippedObject:
    """Decode the object of an event; return a SkippedObject if it cannot be decoded."""
    try:
        found: T = _read(object_decoder(kind.type), text)
    except _UNREADABLE as error:
        return _skipped(kind, text, error)
    return found


def decode_page(kind: Kind[T], body: bytes, asked: str) -> tuple[Listing[T], str]:
    """Decode a page of a list; return it and the token of the next page, "" after the last.

    All objects are decoded at once. If that fails, they are decoded one by one, and those that fail are skipped.
    Raises KubeError(API_DOWN) if the body is not a page.
    """
    try:
        page: ListPage[T] = page_decoder(kind.type).decode(body)
    except _UNREADABLE:
        return _decode_one_by_one(kind, body, asked)
    return Listing(items=page.items or (), resource_version=page.metadata.resource_version), page.metadata.continue_


def event_parts(line: bytes) -> tuple[str, bytes]:
    """Return the type and the object of an event line of a watch. Raises ValueError if the line is not an event."""
    try:
        event = _EVENTS.decode(line)
    except _UNREADABLE:
        parts = members(line)
        if not {"type", "object"} <= set(parts):
            raise ValueError("no event") from None
        return _text(line, parts, "type"), line[slice(*parts["object"])]
    return event.type, bytes(event.object)


def _decode_one_by_one(kind: Kind[T], body: bytes, asked: str) -> tuple[Listing[T], str]:
    items: list[T] = []
    skipped: list[SkippedObject] = []
    try:
        parts = members(body)
        meta = _PAGE_META.decode(body[slice(*parts["metadata"])])
        at = parts["items"][0] if "items" in parts else -1
        spans = elements(body, at) if at >= 0 and body[at : at + 1] != b"n" else iter(())
        for start, end in spans:
            found = decode_event(kind, body[start:end])
            if isinstance(found, SkippedObject):
                skipped.append(found)
            else:
                items.append(found)
    except (ValueError, KeyError) as error:  # also those of msgspec
        raise KubeError(f"{asked}: the answer cannot be read: {error}", reason=Reason.API_DOWN) from error
    listing = Listing(items=tuple(items), resource_version=meta.resource_version, skipped=tuple(skipped))
    return listing, meta.continue_


def _read(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:
    """Decode a text; if that fails, replace values that msgspec cannot decode for any type (see ``scanning``) and drop nulls.

    Some kinds have null instead of an empty list or object. Raises one of ``_UNREADABLE``.
    """
    try:
        return decoder.decode(text)
    except _UNREADABLE:
        text = repaired(text)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        return msgspec.convert(_without_nulls(msgspec.json.decode(text)), decoder.type)


def _skipped(kind: Kind[Any], text: bytes, error: Exception) -> SkippedObject:
    try:
        meta = members(text, members(text)["metadata"][0])
    except (ValueError, KeyError):
        meta = {}
    name, namespace = _text(text, meta, "name"), _text(text, meta, "namespace")
    return SkippedObject(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=_text(text, meta, "uid"),
        resource_version=_text(text, meta, "resourceVersion"),
        error=f"{kind.name} {namespace}/{name} cannot be read: {str(error)[:_ERROR_MAX]}",
    )


def _text(text: bytes, parts: Mapping[str, Span], name: str) -> str:
    """Return the value of a string member if it can be the name of an object, "" otherwise.

    Args:
        text: JSON text of an object.
        parts: spans of the values of its members.
        name: name of the member.
    """
    start, end = parts.get(name, (0, 0))
    value = text[start + 1 : end - 1].decode(errors="replace")
    return value if text[start : start + 1] == b'"' and _PLAIN.fullmatch(value) else ""


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value if one is not None]
    return value
