"""The questions and orders to an API server: ``KubeClient``, which the real client and the one in memory both are."""

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
    """An object that does not fit the type of its kind, so that a list or a watch leaves it out.

    Args:
        kind: the kind that was asked for.
        namespace, name, uid, resource_version: from the object's metadata, each "" where it cannot be read.
        error: why the object cannot be read.
    """

    kind: Kind[Any]
    namespace: str
    name: str
    uid: str
    resource_version: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """All objects that there were at ``resource_version``; a watch goes on from there. ``skipped`` are the objects that cannot
    be read, which are not among ``items``."""

    items: tuple[T, ...]
    resource_version: str
    skipped: tuple[SkippedObject, ...] = ()


class WatchEventType(StrEnum):
    """What happened to an object; a BOOKMARK only says how far the watch has come."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Generic[T]):
    """``object`` after the event (of a deleted one: as it last was), None with a bookmark. With a selector, an object that
    no longer matches comes as DELETED. An event about an object that cannot be read has ``skipped``, and no ``object``."""

    type: WatchEventType
    resource_version: str
    object: T | None
    skipped: SkippedObject | None = None


class Watch(Protocol[T]):
    """An open watch. Iterating blocks; it ends when the API server ends it in good order (begin a new one at the last
    ``resource_version``). Raises ``Expired`` when that version is too old, KubeError(API_DOWN) when the line broke or nothing
    came, not even a bookmark, for too long."""

    def __iter__(self) -> Iterator[WatchEvent[T]]: ...

    def close(self) -> None:
        """End it; from any thread, more than once. Whoever iterates sees the end."""
        ...


class EvictedAs(StrEnum):
    """What came of an eviction: OK, BLOCKED by a disruption budget for now, or the pod was GONE (or another of that name;
    a budget that blocks it is told first)."""

    OK = "ok"
    BLOCKED = "blocked"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The answer to an eviction; ``message`` is the API server's, which names the budget that blocks."""

    as_: EvictedAs
    message: str = ""


class KubeClient(Protocol):
    """An API server. Synchronous and thread-safe; every call ends within its time-out.

    Raises KubeError: BAD_REQUEST (400, 415, 422), NOT_PERMITTED (401, 403), NOT_FOUND (404, of what is not said otherwise),
    CONFLICT (409), API_DOWN (429, 5xx, no connection). Calls that were refused for too much load (429 with Retry-After) are
    repeated within their time-out; a GET or PATCH whose idle connection turns out to be closed is repeated once.
    """

    def within(self, timeout_s: float) -> KubeClient:
        """The same client, whose calls end within so long; a watch that is open is not a call."""
        ...

    def serves(self, kind: Kind[Any]) -> bool:
        """Whether the API server knows this kind (a CRD may not be installed)."""
        ...

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """One object; None when there is none."""
        ...

    def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """All objects, read in pages; ``namespace`` empty means all namespaces."""
        ...

    def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Iterator[Listing[T]]:
        """The same page by page, for who need not hold all at once; every page has the list's one version. Raises Expired
        when the API server forgot it between two pages."""
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
        """What happens after ``resource_version``, with bookmarks. Raises as the iteration does."""
        ...

    def create(self, kind: Kind[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        """Make an object, from its narrow form or a whole mapping. CONFLICT when one of that name exists."""
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
        """Change an object. With ``metadata.resourceVersion`` in ``body`` only that version of it (else CONFLICT), with
        ``metadata.uid`` only that object. ``apply`` is server-side apply and needs ``field_manager``; ``body`` is then the
        whole of what that manager wants; apiVersion, kind and name are filled in. ``strategic`` is not for own kinds."""
        ...

    def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", grace_s: int | None = None
    ) -> bool:
        """Delete, of that ``uid`` only when given. False when there is none, or another of the name."""
        ...

    def bind(
        self, namespace: str, name: str, uid: str, node: str, *, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Give a pod its node, and these annotations in the same write. CONFLICT when it has one or ``uid`` is not its own,
        NOT_FOUND when it is gone."""
        ...

    def evict(self, namespace: str, name: str, uid: str, *, grace_s: int | None = None) -> Evicted:
        """Ask for a pod to be taken away, as disruption budgets allow."""
        ...
