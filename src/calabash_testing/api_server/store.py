"""Objects of every kind, their common resource version, and the events since the last compaction."""

from __future__ import annotations

import copy
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from calabash.adapters.kube.errors import KubeError
from calabash.adapters.kube.objects.meta import Kind
from calabash.model.errors import Reason

Json = dict[str, Any]
_EVENTS_MAX = 50_000
StoreKey = tuple[str, str]  # namespace, name


@dataclass(slots=True)
class StoredEvent:
    """One change: ``before`` and ``after`` as whole objects, at most one of them None."""

    version: int
    kind: str
    before: Json | None
    after: Json | None


@dataclass(slots=True)
class MemoryStore:
    """Objects by kind and name. The condition ``changed`` guards all fields and is notified of every change."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 1
    oldest: int = 1  # events up to this version are dropped
    trimmed: int = 0  # events up to this version are dropped for open watches too, because there were too many
    objects: dict[str, dict[StoreKey, Json]] = field(default_factory=dict)
    events: list[StoredEvent] = field(default_factory=list)

    def objects_of(self, kind: Kind[Any]) -> dict[StoreKey, Json]:
        """Return the objects of a kind; kinds with the same plural and group are the same kind."""
        return self.objects.setdefault(kind_key(kind), {})

    def find(self, kind: Kind[Any], name: str, namespace: str) -> Json:
        """Return one object.

        Raises:
            KubeError: NOT_FOUND, with the text of the API server.
        """
        found = self.objects_of(kind).get((namespace if kind.namespaced else "", name))
        if found is None:
            raise refused(404, "NotFound", f'{kind.plural} "{name}" not found', Reason.NOT_FOUND)
        return found

    def add(self, kind: Kind[Any], obj: Mapping[str, Any], namespace: str) -> Json:
        """Store a new object with its UID, creation time and generation, and return it."""
        made: Json = copy.deepcopy(dict(obj))
        meta = made.setdefault("metadata", {})
        if kind.namespaced:
            meta["namespace"] = namespace = namespace or meta.get("namespace", "")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        key = (namespace if kind.namespaced else "", meta["name"])
        if key in self.objects_of(kind):
            raise refused(409, "AlreadyExists", f'{kind.plural} "{key[1]}" already exists', Reason.CONFLICT)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        self._put(kind, key, None, made)
        return made

    def replace(self, kind: Kind[Any], before: Json, after: Json) -> Json:
        """Store the next version of an object; emit no event if it is unchanged."""
        if after == before:
            return before
        meta = after["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and _released(kind, after):
            self.remove(kind, before)
            return after
        self._put(kind, key, before, after)
        return after

    def remove(self, kind: Kind[Any], obj: Json) -> None:
        """Remove an object and record its deletion."""
        meta = obj["metadata"]
        del self.objects_of(kind)[meta.get("namespace", ""), meta["name"]]
        gone = copy.deepcopy(obj)
        self._stamp(gone)
        self._record(kind, obj, None, gone)

    def compact_events(self) -> None:
        """Drop all events, as a compaction does: a watch from an earlier version gets 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.events.clear()
            self.changed.notify_all()

    def since(self, kind: Kind[Any], version: int) -> Iterator[StoredEvent]:
        """Return the events of a kind after a version, oldest first."""
        wanted = kind_key(kind)
        first = bisect_right(self.events, version, key=lambda event: event.version)
        return (event for event in islice(self.events, first, None) if event.kind == wanted)

    def _put(self, kind: Kind[Any], key: StoreKey, before: Json | None, after: Json) -> None:
        self._stamp(after)
        self.objects_of(kind)[key] = after
        self._record(kind, before, after, None)

    def _stamp(self, obj: Json) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)

    def _record(self, kind: Kind[Any], before: Json | None, after: Json | None, gone: Json | None) -> None:
        if len(self.events) >= _EVENTS_MAX:
            self.trimmed = self.oldest = self.events[_EVENTS_MAX // 2 - 1].version
            del self.events[: _EVENTS_MAX // 2]
        self.events.append(StoredEvent(self.version, kind_key(kind), gone if after is None else before, after))
        self.changed.notify_all()


def kind_key(kind: Kind[Any]) -> str:
    """Return the key of a kind: its API group and plural."""
    return f"{kind.api_version.rpartition('/')[0]}/{kind.plural}"


def refused(status: int, cause: str, message: str, reason: Reason) -> KubeError:
    """Build the error of a refusal as the API server words it."""
    return KubeError(message, reason=reason, status=status, cause=cause)


def now() -> str:
    """Return the current time in the format of objects."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _released(kind: Kind[Any], obj: Json) -> bool:
    """Return True if only finalizers kept the deleted object. A pod on a node is also kept by its kubelet."""
    on_node = kind.plural == "pods" and bool(obj.get("spec", {}).get("nodeName"))
    return not on_node or obj["metadata"].get("deletionGracePeriodSeconds", 0) == 0
