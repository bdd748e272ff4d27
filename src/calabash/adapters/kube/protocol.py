"""Interface of a client of the API server: ``KubeClient``, implemented over HTTP and in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Literal, Protocol

from calabash.adapters.kube.objects.meta import Kind, T

PatchStyle = Literal["merge", "strategic", "json", "apply"]
PatchBody = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedObject:
    """Object that does not fit the type of its kind, and is therefore left out of a list or watch.

    Args:
        kind: the requested kind.
        namespace, name, uid, resource_version: from the object's metadata; "" where they cannot be read.
        error: reason why the object cannot be decoded.
    """

    kind: Kind[Any]
    namespace: str
    name: str
    uid: str
    resource_version: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """All objects at ``resource_version``, from which a watch can continue.

    Objects that cannot be read are in ``skipped`` and not in ``items``.
    """

    items: tuple[T, ...]
    resource_version: str
    skipped: tuple[SkippedObject, ...] = ()


class WatchEventType(StrEnum):
    """Type of a watch event; a BOOKMARK only advances the resource version."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Generic[T]):
    """Event of a watch.

    Args:
        object: the object after the event, for DELETED its last state; None for a bookmark.
        skipped: set instead of ``object`` if the object cannot be read.

    With a selector, an object that no longer matches is reported as DELETED.
    """

    type: WatchEventType
    resource_version: str
    object: T | None
    skipped: SkippedObject | None = None


class Watch(Protocol[T]):
    """Open watch. Iterating blocks and ends when the API server ends the watch: begin a new one at the last version.

    Raises ``Expired`` if that version is too old, KubeError(API_DOWN) if the connection fails or nothing is received
    for too long, not even a bookmark.
    """

    def __iter__(self) -> Iterator[WatchEvent[T]]: ...

    def close(self) -> None:
        """End the watch, from any thread; may be called again. An iterating thread sees the end."""
        ...


class EvictedAs(StrEnum):
    """Result of an eviction.

    OK: the pod is evicted. BLOCKED: a disruption budget forbids the eviction; this may also be reported for a pod that
    does not exist any more. GONE: the pod does not exist, or another pod has its name.
    """

    OK = "ok"
    BLOCKED = "blocked"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """Result of an eviction; ``message`` is the API server's, which names the budget that blocks."""

    as_: EvictedAs
    message: str = ""


class KubeClient(Protocol):
    """Client of an API server. Synchronous and thread-safe; every call ends within its time-out.

    ``label_selector`` and ``field_selector`` select objects by their labels and fields; "" selects all.

    Raises KubeError: BAD_REQUEST (400, 415, 422), NOT_PERMITTED (401, 403), NOT_FOUND (404, unless stated otherwise),
    CONFLICT (409), API_DOWN (429, 5xx, no connection). Calls refused for overload (429 with Retry-After) are repeated
    within their time-out; a GET or PATCH whose idle connection turns out to be closed is repeated once.
    """

    def within(self, timeout_s: float) -> KubeClient:
        """Return a client with the same connections and another time-out, which does not apply to open watches."""
        ...

    def serves(self, kind: Kind[Any]) -> bool:
        """Return True if the API server serves this kind (a CRD may not be installed)."""
        ...

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """Return the object, or None if it does not exist."""
        ...

    def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """Return all objects, read in pages; an empty ``namespace`` means all namespaces."""
        ...

    def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Iterator[Listing[T]]:
        """Yield all objects page by page; every page has the resource version of the whole list.

        Raises Expired if the API server dropped that version between two pages.
        """
        ...

    def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Watch[T]:
        """Watch for events after ``resource_version``, with bookmarks.

        Raises the same errors as the iteration of :class:`Watch`.
        """
        ...

    def create(self, kind: Kind[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        """Create an object from its narrow type or a complete mapping. Raises CONFLICT if the name exists."""
        ...

    def patch(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        body: PatchBody,
        style: PatchStyle = "merge",
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
    ) -> T:
        """Patch an object and return it.

        Args:
            kind: kind of the object.
            name: name of the object.
            namespace: its namespace; "" for a cluster-scoped kind.
            body: the patch. If it has ``metadata.resourceVersion`` or ``metadata.uid``, an object with another version
                or UID is not patched, and CONFLICT is raised. For ``apply``, the body has all fields that the field
                manager sets; apiVersion, kind and name are filled in.
            style: kind of patch. ``apply`` is server-side apply and needs ``field_manager``; ``strategic`` is only for
                built-in kinds.
            subresource: subresource to patch, such as ``status``; "" for the object itself.
            field_manager: name of the program that owns the fields, for server-side apply.
            force: True to take over fields that another field manager owns.
        """
        ...

    def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", grace_s: int | None = None
    ) -> bool:
        """Delete an object; return False if there is no such object.

        Args:
            kind: kind of the object.
            name: name of the object.
            namespace: its namespace; "" for a cluster-scoped kind.
            uid: UID that the object must have; an object of the same name with another UID is not deleted. "" for any.
            grace_s: grace period in seconds; None for the object's own.
        """
        ...

    def bind(
        self, namespace: str, name: str, uid: str, node: str, *, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Bind a pod to a node and add annotations in the same write.

        Raises CONFLICT if the pod has a node or another UID, NOT_FOUND if it does not exist.
        """
        ...

    def evict(self, namespace: str, name: str, uid: str, *, grace_s: int | None = None) -> Evicted:
        """Evict a pod through the eviction API, which respects disruption budgets.

        Args:
            namespace: namespace of the pod.
            name: name of the pod.
            uid: UID that the pod must have; a pod of the same name with another UID is not evicted.
            grace_s: grace period in seconds; None for the pod's own.
        """
        ...
