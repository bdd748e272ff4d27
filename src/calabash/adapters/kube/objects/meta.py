"""What every object of the API server has, and the name of a kind: the base of ``objects`` and of the client.

Objects are narrow: only fields that the product uses, unknown ones are ignored, so that a newer API server or a stranger's
extension breaks nothing. They are frozen and outside the garbage collector's care, for caches hold tens of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec


class KubeStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all shapes of the API server: camelCase outside, unknown fields ignored, defaults not written."""


class OwnerReference(KubeStruct, frozen=True):
    """Whose the object is; the one with ``controller`` makes it again when it is deleted."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(KubeStruct, frozen=True):
    """Who an object is. Times are RFC 3339 in UTC; ``resource_version`` may only be compared for being equal."""

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
        """The owner that makes the object again, when it has one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class KubeObject(Protocol):
    """Anything with a name in the API server."""

    @property
    def metadata(self) -> ObjectMeta:
        """Who it is."""
        ...


T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """A kind of object and the type that it is decoded to.

    ``api_version`` is ``v1`` or ``group/version``; ``plural`` stands in paths; ``type`` is a ``KubeStruct`` with
    ``metadata``. Two kinds may name the same objects with different types: the narrower, the smaller a cache.
    """

    api_version: str
    name: str
    plural: str
    namespaced: bool
    type: type[T]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Where the objects are; ``namespace`` empty means all. Names are checked: a path can be left by no name."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        if namespace and self.namespaced:
            root += f"/namespaces/{_segment(namespace)}"
        root += f"/{self.plural}"
        if name:
            root += f"/{_segment(name)}"
        return f"{root}/{subresource}" if subresource else root


def _segment(name: str) -> str:
    """A name as it stands in a path. Kubernetes allows in names no more than letters, digits, ``-``, ``.`` and ``:``."""
    if not name.replace("-", "").replace(".", "").replace(":", "").replace("_", "").isalnum() or not name.isascii():
        raise ValueError(f"{name!r} is no name of an object")
    if name in {".", ".."}:
        raise ValueError(f"{name!r} is no name of an object")
    return name
