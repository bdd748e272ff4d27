"""What the API server in memory keeps: objects of every kind, one resource version for all, and the events since."""

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
    """One change: ``before`` and ``after`` as whole objects, one of them None at most."""

    version: int
    kind: str
    before: Json | None
    after: Json | None


@dataclass(slots=True)
class MemoryStore:
    """Objects by kind and name. ``changed`` guards everything and is notified of every change."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    version: int = 1
    oldest: int = 1  # events up to here are forgotten
    trimmed: int = 0  # and up to here for open watches as well: there were too many
    objects: dict[str, dict[StoreKey, Json]] = field(default_factory=dict)
    events: list[StoredEvent] = field(default_factory=list)

    def of(self, kind: Kind[Any]) -> dict[StoreKey, Json]:
        """The objects of a kind; kinds of one plural and group are the same."""
        return self.objects.setdefault(kind_key(kind), {})

    def find(self, kind: Kind[Any], name: str, namespace: str) -> Json:
        """One object, or NOT_FOUND as the API server words it."""
        found = self.of(kind).get((namespace if kind.namespaced else "", name))
        if found is None:
            raise refused(404, "NotFound", f'{kind.plural} "{name}" not found', Reason.NOT_FOUND)
        return found

    def add(self, kind: Kind[Any], obj: Mapping[str, Any], namespace: str) -> Json:
        """A new object with its identity filled in."""
        made: Json = copy.deepcopy(dict(obj))
        meta = made.setdefault("metadata", {})
        if kind.namespaced:
            meta["namespace"] = namespace = namespace or meta.get("namespace", "")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        key = (namespace if kind.namespaced else "", meta["name"])
        if key in self.of(kind):
            raise refused(409, "AlreadyExists", f'{kind.plural} "{key[1]}" already exists', Reason.CONFLICT)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        self._put(kind, key, None, made)
        return made

    def replace(self, kind: Kind[Any], before: Json, after: Json) -> Json:
        """The object's next form; nothing happens when it is the same."""
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
        """The object is gone."""
        meta = obj["metadata"]
        del self.of(kind)[meta.get("namespace", ""), meta["name"]]
        gone = copy.deepcopy(obj)
        self._stamp(gone)
        self._record(kind, obj, None, gone)

    def forget(self) -> None:
        """Forget all events, as a compaction does: whoever watches from an earlier version is told 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.events.clear()
            self.changed.notify_all()

    def since(self, kind: Kind[Any], version: int) -> Iterator[StoredEvent]:
        """Events of a kind after a version, oldest first."""
        wanted = kind_key(kind)
        first = bisect_right(self.events, version, key=lambda event: event.version)
        return (event for event in islice(self.events, first, None) if event.kind == wanted)

    def _put(self, kind: Kind[Any], key: StoreKey, before: Json | None, after: Json) -> None:
        self._stamp(after)
        self.of(kind)[key] = after
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
    """What tells kinds apart."""
    return f"{kind.api_version.rpartition('/')[0]}/{kind.plural}"


def refused(status: int, cause: str, message: str, reason: Reason) -> KubeError:
    """A refusal as the API server gives it."""
    return KubeError(message, reason=reason, status=status, cause=cause)


def now() -> str:
    """The time as objects have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _released(kind: Kind[Any], obj: Json) -> bool:
    """Whether nothing but finalizers held a deleted object: pods on a node are held by its kubelet."""
    on_node = kind.plural == "pods" and bool(obj.get("spec", {}).get("nodeName"))
    return not on_node or obj["metadata"].get("deletionGracePeriodSeconds", 0) == 0
