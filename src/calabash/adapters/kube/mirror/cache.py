"""Objects that a mirror holds, and the changes that it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic

from calabash.adapters.kube.objects.meta import T
from calabash.adapters.kube.protocol import SkippedObject, WatchEvent, WatchEventType

ObjectKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorChange(Generic[T]):
    """Change of one object: ``before`` is None for a new object, ``after`` is None for a deleted one."""

    before: T | None
    after: T | None


class MirrorCache(Generic[T]):
    """All objects by (namespace, name). One thread changes it, any thread may read it.

    Args:
        notify: called for every change in order, without a lock held, after the change was made in the cache.
        keep: reduces an object to the fields that the cache needs, to save memory; returns None for an object that the
            cache neither keeps nor reports. Without it, all objects are kept whole.
    """

    def __init__(self, notify: Callable[[MirrorChange[T]], None], keep: Callable[[T], T | None] | None = None) -> None:
        self._notify = notify
        self._keep = keep
        self._lock = threading.Lock()
        self._objects: dict[ObjectKey, T] = {}
        self._ahead: dict[ObjectKey, int] = {}  # objects that are ahead of the watch, with their versions

    def snapshot(self) -> dict[ObjectKey, T]:
        """Return a copy of all objects."""
        with self._lock:
            return dict(self._objects)

    def get(self, key: ObjectKey) -> T | None:
        """Return the object, or None."""
        with self._lock:
            return self._objects.get(key)

    def __len__(self) -> int:
        return len(self._objects)

    def apply(self, event: WatchEvent[T]) -> None:
        """Apply an event of a watch."""
        if event.skipped is not None:
            self.skip(event.skipped, gone=event.type is WatchEventType.DELETED)
            return
        obj = event.object
        if obj is None or self._is_past(obj, event.resource_version):
            return
        if event.type is WatchEventType.DELETED:
            self._drop((obj.metadata.namespace, obj.metadata.name), obj)
        else:
            self.put(obj)

    def put(self, obj: T) -> ObjectKey:
        """Insert or update the object; return its key. Reports no change if its version is held already."""
        key = (obj.metadata.namespace, obj.metadata.name)
        before = self._objects.get(key)
        if before is not None:
            if before.metadata.resource_version == obj.metadata.resource_version:
                return key
            if before.metadata.uid != obj.metadata.uid:
                self._drop(key, None)
                before = None
        kept = obj if self._keep is None else self._keep(obj)
        if kept is None:
            self._drop(key, obj)
            return key
        with self._lock:
            self._objects[key] = kept
        self._notify(MirrorChange(before=before, after=kept))
        return key

    def skip(self, skipped: SkippedObject, *, gone: bool = False) -> ObjectKey:
        """Handle an object that cannot be decoded; return its key.

        Its last readable version stays in the cache, because a pod whose object becomes unreadable keeps its devices.
        The object in the cache is removed in two cases: it is an earlier object of the same name with another UID, or
        ``gone`` is true, which means that the object was deleted.
        """
        key = (skipped.namespace, skipped.name)
        before = self._objects.get(key)
        if before is not None and (gone or (skipped.uid and before.metadata.uid != skipped.uid)):
            self._drop(key, None)
        return key

    def put_ahead(self, obj: T) -> None:
        """Insert or update an object of a newer version than the watch has reached.

        Later events of the watch about earlier versions of the object, or about an earlier object of that name, are
        ignored. This is possible because the versions of an API server are ordered.
        """
        version = obj.metadata.resource_version
        if version.isdecimal():
            self._ahead[obj.metadata.namespace, obj.metadata.name] = int(version)
        self.put(obj)

    def retain(self, keys: Collection[ObjectKey]) -> None:
        """Remove all objects except those with these keys."""
        self._ahead.clear()
        for key in [key for key in self._objects if key not in keys]:
            self._drop(key, None)

    def _is_past(self, obj: T, version: str) -> bool:
        key = (obj.metadata.namespace, obj.metadata.name)
        ahead = self._ahead.get(key)
        if ahead is None:
            return False
        if version.isdecimal() and int(version) < ahead:
            return True
        del self._ahead[key]
        return False

    def _drop(self, key: ObjectKey, last: T | None) -> None:
        with self._lock:
            before = self._objects.pop(key, None)
        if before is not None:
            same = last is not None and last.metadata.uid == before.metadata.uid
            self._notify(MirrorChange(before=last if same else before, after=None))
