"""Kubernetes API server in memory, with the interface ``KubeClient``.

The contract tests of ``KubeClient`` run against it and against a real API server. It implements resource versions, conflicts,
watches with selectors and bookmarks, all four patch types, the status subresource, grace periods and finalizers, bindings and
disruption budgets. It does not validate objects, does not schedule pods and runs no controllers: a test writes the objects that
these would write.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Generic

import msgspec

from calabash.adapters.kube.errors import Expired, KubeError
from calabash.adapters.kube.http.wire import decode_event
from calabash.adapters.kube.objects.core import PDB, POD
from calabash.adapters.kube.objects.meta import Kind, T
from calabash.adapters.kube.protocol import (
    Evicted,
    EvictedAs,
    Listing,
    PatchBody,
    PatchStyle,
    SkippedObject,
    WatchEvent,
    WatchEventType,
)
from calabash.model.errors import Reason
from calabash_testing.api_server import patch as api_server_patch
from calabash_testing.api_server.rules import bound, changed, created, preconditions, selected
from calabash_testing.api_server.selectors import matches
from calabash_testing.api_server.store import Json, MemoryStore, kind_key, now, refused

_PAGE = 500


class MemoryFaults:
    """Faults that a test injects into an API server in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.down = False
        self.absent: set[str] = set()  # kinds that are not installed: plurals, or API version and plural
        self.mute = 0  # so many bindings are done and the answer is lost
        self.watches: set[MemoryWatch[Any]] = set()

    def compact_events(self) -> None:
        """Drop all events: a watch from an earlier resource version gets 410. Open watches continue."""
        self._store.compact_events()

    def break_watches(self) -> None:
        """Close the connections of all open watches."""
        with self._store.changed:
            for watch in self.watches:
                watch.broken = True
            self._store.changed.notify_all()

    def bookmark(self) -> None:
        """Send a bookmark to all open watches."""
        with self._store.changed:
            for watch in self.watches:
                watch.bookmarks += 1
            self._store.changed.notify_all()

    def release(self, namespace: str, name: str) -> None:
        """End a pod that is being deleted, as its kubelet does."""
        with self._store.changed:
            self._store.remove(POD, self._store.find(POD, name, namespace))

    def lacks(self, kind: Kind[Any]) -> bool:
        """Return True if the kind, or this version of it, is not installed."""
        return kind.plural in self.absent or f"{kind.api_version}/{kind.plural}" in self.absent

    def check(self) -> None:
        """Raise the error of the fault that is set, if any."""
        if self.down:
            raise KubeError("the API server is down", reason=Reason.API_DOWN)

    def answer(self) -> None:
        """Raise a lost-answer error if ``mute`` says so for a binding that was carried out."""
        if self.mute:
            self.mute -= 1
            raise KubeError("the connection was closed", reason=Reason.API_DOWN)


class MemoryKube:
    """``KubeClient`` on objects in memory; ``faults`` injects faults."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._applied: dict[tuple[str, str, str, str, str], Any] = {}
        self.namespace = "default"
        self.faults = MemoryFaults(self._store)

    def within(self, timeout_s: float) -> MemoryKube:
        return self

    def serves(self, kind: Kind[Any]) -> bool:
        self.faults.check()
        return not self.faults.lacks(kind)

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        self.faults.check()
        with self._store.changed:
            found = self._store.objects_of(kind).get((namespace if kind.namespaced else "", name))
            return None if found is None else _typed(kind, found)

    def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        self.faults.check()
        with self._store.changed:
            if self.faults.lacks(kind):
                raise refused(404, "NotFound", "the server could not find the requested resource", Reason.NOT_FOUND)
            chosen = [
                obj
                for key, obj in sorted(self._store.objects_of(kind).items())
                if namespace in {"", key[0]} and matches(obj, label_selector, field_selector)
            ]
            version = str(self._store.version)
            found = [_read(kind, obj) for obj in chosen]
        return Listing(
            items=tuple(one for one in found if not isinstance(one, SkippedObject)),
            resource_version=version,
            skipped=tuple(one for one in found if isinstance(one, SkippedObject)),
        )

    def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Iterator[Listing[T]]:
        whole = self.list(kind, namespace, label_selector=label_selector, field_selector=field_selector)
        for at in range(0, max(len(whole.items), 1), _PAGE):
            yield Listing(
                items=whole.items[at : at + _PAGE],
                resource_version=whole.resource_version,
                skipped=whole.skipped if at == 0 else (),
            )

    def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> MemoryWatch[T]:
        self.faults.check()
        with self._store.changed:
            if int(resource_version) < self._store.oldest:
                raise Expired(f"too old resource version: {resource_version} ({self._store.oldest})")
            watch = MemoryWatch(
                self._store, self.faults, kind, int(resource_version), (namespace, label_selector, field_selector)
            )
            self.faults.watches.add(watch)
            return watch

    def create(self, kind: Kind[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        self.faults.check()
        value = dict(obj) if isinstance(obj, Mapping) else msgspec.to_builtins(obj)
        value = msgspec.json.decode(msgspec.json.encode(value))
        with self._store.changed:
            if self.faults.lacks(kind):
                raise refused(404, "NotFound", "the server could not find the requested resource", Reason.NOT_FOUND)
            return _typed(kind, self._store.add(kind, created(kind, value), namespace))

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
        self.faults.check()
        if style == "strategic" and "." in kind.api_version.partition("/")[0] and "k8s.io" not in kind.api_version:
            raise refused(
                415, "UnsupportedMediaType", "the body of the request was in an unknown format", Reason.BAD_REQUEST
            )
        value = msgspec.json.decode(msgspec.json.encode(body))
        with self._store.changed:
            if style == "apply":
                return self._apply(kind, name, namespace, value=value, subresource=subresource, manager=field_manager)
            before = self._store.find(kind, name, namespace)
            if isinstance(value, list):
                after = api_server_patch.json_patch(before, value)
                preconditions(kind, before, after["metadata"])
            else:
                preconditions(kind, before, value.get("metadata", {}))
                after = (api_server_patch.strategic if style == "strategic" else api_server_patch.merge)(before, value)
            return _typed(kind, self._store.replace(kind, before, changed(kind, before, after, subresource)))

    def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", grace_s: int | None = None
    ) -> bool:
        self.faults.check()
        with self._store.changed:
            before = self._store.objects_of(kind).get((namespace if kind.namespaced else "", name))
            if before is None or (uid and uid != before["metadata"]["uid"]):
                return False
            self._take(kind, before, grace_s)
            return True

    def bind(
        self, namespace: str, name: str, uid: str, node: str, *, annotations: Mapping[str, str] | None = None
    ) -> None:
        self.faults.check()
        with self._store.changed:
            before = self._store.find(POD, name, namespace)
            self._store.replace(POD, before, bound(before, uid, node, annotations or {}))
        self.faults.answer()

    def evict(self, namespace: str, name: str, uid: str, *, grace_s: int | None = None) -> Evicted:
        self.faults.check()
        with self._store.changed:
            pod = self._store.objects_of(POD).get((namespace, name))
            if pod is None:
                return Evicted(as_=EvictedAs.GONE, message=f'pods "{name}" not found')
            budget = self._budget(pod)
            if budget is not None:
                allowed = budget.get("status", {}).get("disruptionsAllowed", 0)
                if allowed <= 0:
                    text = f"The disruption budget {budget['metadata']['name']} allows no disruption now"
                    return Evicted(as_=EvictedAs.BLOCKED, message=text)
                status = budget["status"] | {"disruptionsAllowed": allowed - 1}
                self._store.replace(PDB, budget, copy.deepcopy(budget) | {"status": status})
            if uid and uid != pod["metadata"]["uid"]:
                return Evicted(as_=EvictedAs.GONE, message=f"the pod of this name is {pod['metadata']['uid']}")
            self._take(POD, pod, grace_s)
            return Evicted(as_=EvictedAs.OK)

    def _budget(self, pod: Json) -> Json | None:
        """Return the disruption budget that protects a pod; a pod that is not bound has none."""
        leaving = "deletionTimestamp" in pod["metadata"]
        if leaving or pod.get("status", {}).get("phase") in {"Succeeded", "Failed", "Pending"}:
            return None
        labels = pod["metadata"].get("labels", {})
        found = [
            budget
            for (namespace, _name), budget in self._store.objects_of(PDB).items()
            if namespace == pod["metadata"]["namespace"] and selected(budget.get("spec", {}).get("selector"), labels)
        ]
        if len(found) > 1:
            text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise refused(500, "InternalError", text, Reason.API_DOWN)
        return found[0] if found else None

    def _take(self, kind: Kind[Any], before: Json, grace_s: int | None) -> None:
        meta = before["metadata"]
        spec = before.get("spec", {})
        grace = 0
        if kind.plural == "pods" and spec.get("nodeName"):
            grace = spec.get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
        if not grace and not meta.get("finalizers"):
            self._store.remove(kind, before)
        elif not meta.get("deletionTimestamp"):
            after = copy.deepcopy(before)
            after["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}
            self._store.replace(kind, before, after)
        elif grace < meta.get("deletionGracePeriodSeconds", 0):  # it can only become shorter
            after = copy.deepcopy(before)
            after["metadata"]["deletionGracePeriodSeconds"] = grace
            self._store.replace(kind, before, after)

    def _apply(self, kind: Kind[T], name: str, namespace: str, *, value: Json, subresource: str, manager: str) -> T:
        if not manager:
            raise refused(400, "BadRequest", "fieldManager is required for apply patch", Reason.BAD_REQUEST)
        key = (namespace if kind.namespaced else "", name)
        if key not in self._store.objects_of(kind):
            self._store.add(kind, created(kind, {"metadata": {"name": name}}), key[0])
        before = self._store.find(kind, name, namespace)
        preconditions(kind, before, value.get("metadata", {}))
        slot = (kind_key(kind), *key, manager, subresource)
        after = api_server_patch.apply(before, self._applied.get(slot), value)
        self._applied[slot] = value
        return _typed(kind, self._store.replace(kind, before, changed(kind, before, after, subresource)))


class MemoryWatch(Generic[T]):
    """A watch on objects in memory."""

    def __init__(
        self, store: MemoryStore, faults: MemoryFaults, kind: Kind[T], version: int, chosen: tuple[str, str, str]
    ) -> None:
        self._store, self._faults, self._kind, self._version = store, faults, kind, version
        self._namespace, self._labels, self._fields = chosen
        self.broken = self._closed = False
        self.bookmarks = 0

    def __iter__(self) -> Iterator[WatchEvent[T]]:
        while True:
            with self._store.changed:
                self._store.changed.wait_for(self._something)
                if self._closed:
                    return
                if self.broken or self._faults.down:
                    raise KubeError(f"watch of {self._kind.plural}: the line broke", reason=Reason.API_DOWN)
                if self._version < self._store.trimmed:
                    raise Expired(f"too old resource version: {self._version} ({self._store.trimmed})")
                if self._version < self._store.oldest and not list(self._store.since(self._kind, self._version)):
                    self._version = self._store.oldest  # an open watch had everything up to the compaction
                events = [event for e in self._store.since(self._kind, self._version) if (event := self._seen(e))]
                self._version = self._store.version
                while self.bookmarks:
                    self.bookmarks -= 1
                    events.append(
                        WatchEvent(type=WatchEventType.BOOKMARK, resource_version=str(self._version), object=None)
                    )
            yield from events

    def close(self) -> None:
        with self._store.changed:
            self._closed = True
            self._faults.watches.discard(self)
            self._store.changed.notify_all()

    def _something(self) -> bool:
        waiting = self._closed or self.broken or self._faults.down or self.bookmarks
        return bool(waiting) or any(True for _ in self._store.since(self._kind, self._version))

    def _seen(self, event: Any) -> WatchEvent[T] | None:
        before = event.before is not None and self._chosen(event.before)
        after = event.after is not None and self._chosen(event.after)
        if not before and not after:
            return None
        if after:
            what = WatchEventType.MODIFIED if before else WatchEventType.ADDED
            obj = event.after
        else:
            what, obj = WatchEventType.DELETED, event.before
        read, version = _read(self._kind, obj), str(event.version)
        if isinstance(read, SkippedObject):
            return WatchEvent(type=what, resource_version=version, object=None, skipped=read)
        return WatchEvent(type=what, resource_version=version, object=read)

    def _chosen(self, obj: Json) -> bool:
        mine = self._namespace in {"", obj["metadata"].get("namespace", "")}
        return mine and matches(obj, self._labels, self._fields)


def _typed(kind: Kind[T], obj: Json) -> T:
    return msgspec.convert(obj, kind.type, strict=True)


def _read(kind: Kind[T], obj: Json) -> T | SkippedObject:
    """Decode an object of a list or an event as the real client does."""
    try:
        return _typed(kind, obj)
    except (msgspec.ValidationError, RecursionError):
        return decode_event(kind, msgspec.json.encode(obj))
