"""Metadata of Kubernetes objects, base class of their types, and kinds.

Types have only the fields that the product uses; unknown fields are ignored, so that a newer API server or an extension
breaks nothing. They are frozen and not tracked by the garbage collector, because caches hold tens of thousands of
objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec


class KubeStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all types of the API server: camelCase names, unknown fields ignored, defaults not written."""


class OwnerReference(KubeStruct, frozen=True):
    """Owner of an object; the owner with ``controller`` may create a replacement when the object is deleted."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(KubeStruct, frozen=True):
    """Metadata of an object. Times are RFC 3339 in UTC; ``resource_version`` may only be compared for equality."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that is the object's controller, or None."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class KubeObject(Protocol):
    """Object with metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """Metadata of the object."""
        ...


T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """Kind of object and the type that it is decoded to.

    Args:
        api_version: ``v1`` or ``group/version``.
        plural: name of the kind in paths.
        type: a ``KubeStruct`` with ``metadata``. Two kinds may name the same objects with different types; a narrower
            type makes a smaller cache.
    """

    api_version: str
    name: str
    plural: str
    namespaced: bool
    type: type[T]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of the objects; an empty ``namespace`` means all namespaces.

        Raises ValueError if a name has characters with which it could leave its path segment.
        """
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        if namespace and self.namespaced:
            root += f"/namespaces/{_segment(namespace)}"
        root += f"/{self.plural}"
        if name:
            root += f"/{_segment(name)}"
        return f"{root}/{subresource}" if subresource else root


def _segment(name: str) -> str:
    """Return a name as a path segment; names of Kubernetes have only letters, digits, ``-``, ``.`` and ``:``."""
    if not name.replace("-", "").replace(".", "").replace(":", "").replace("_", "").isalnum() or not name.isascii():
        raise ValueError(f"{name!r} is not a valid name of an object")
    if name in {".", ".."}:
        raise ValueError(f"{name!r} is not a valid name of an object")
    return name
