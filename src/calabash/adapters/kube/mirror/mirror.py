"""Cache of all objects of a kind, kept up to date by list and watch.

A thread lists in pages, then watches from where the list ended. It reports a sequence of changes that turns the empty
cache into the API server's state, whatever happens on the way:

* A watch that ends or breaks is begun again at the last version seen, so that nothing is lost in between.
* If the version is too old (410, as an answer or an event), or unknown to the server (a restored etcd), objects are
  listed again, and the differences to the cache are reported as changes, including deletes that were missed.
* An object that was deleted and created again with the same name is reported as a delete and an add, not as a
  modification.
* A connection on which nothing arrives for longer than the interval of bookmarks is considered broken.
* An object that cannot be read is left out and reported to the observer; all others are not affected.
* A caller that must see everything written before now requests a new list with ``renew``.

Pages are compared one by one and unchanged objects are kept, so that a new list needs no memory for a second copy.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol

from calabash.adapters.kube.errors import Expired, KubeError
from calabash.adapters.kube.http.counts import KUBE_COUNTS
from calabash.adapters.kube.mirror.cache import MirrorCache, MirrorChange, ObjectKey
from calabash.adapters.kube.objects.meta import Kind, KubeObject, T
from calabash.adapters.kube.protocol import KubeClient, SkippedObject, Watch, WatchEvent, WatchEventType
from calabash.model.errors import CalabashError, Reason

_BACKOFF_FIRST_S, _BACKOFF_MAX_S = 0.2, 4.0
_WATCH_SHORT_S = 1.0  # a watch that ends sooner, with nothing to tell, is a failure
_OVERLOADED = frozenset({429, 503})
_RETRY_AFTER_MAX_S = 30.0
_ERROR_MAX = 300
_RESUMES_MAX = 4  # failures in a row before a list takes the place of a resumed watch


class MirrorObserver(Protocol):
    """Gets the failures of any number of mirrors, from the threads of these."""

    def mirror_failed(self, kind: Kind[Any], error: Exception) -> None:
        """Handle a failure of the watch of a kind, or of the mirror's ``on_change``; the mirror continues without help."""
        ...

    def object_skipped(self, skipped: SkippedObject) -> None:
        """Handle a version of an object that cannot be read, or for which the mirror's ``on_change`` or ``keep`` fails.

        Called again for the same version after a new list.
        """
        ...


class Mirror(Generic[T]):
    """All objects of a kind that the selectors match, by (namespace, name).

    Args:
        client: the API server.
        kind: kind to hold; a kind with a narrower type needs less memory.
        on_change: called from the mirror's thread for every change in order, without a lock held; the cache has the
            change already. It must not block for long. It is not called after ``stop`` has returned.
        observer: gets the failures of this mirror.
        keep: reduces an object to the fields that the caller needs, to save memory; returns None for an object to drop,
            for conditions that selectors cannot express. Without it, all objects are kept whole.
        namespace: namespace of the objects; "" for all.
        label_selector: labels that the objects must have; "" for any.
        field_selector: values of fields that the objects must have; "" for any.
    """

    def __init__(
        self,
        client: KubeClient,
        kind: Kind[T],
        *,
        on_change: Callable[[MirrorChange[T]], None] | None = None,
        observer: MirrorObserver | None = None,
        keep: Callable[[T], T | None] | None = None,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self._client = client
        self._kind = kind
        self._on_change = on_change
        self._observer = observer
        self._cache = MirrorCache(self._changed, keep)
        self._namespace = namespace
        self._labels, self._fields = label_selector, field_selector
        self._lock = threading.Lock()
        self._version = ""
        self._failures = 0
        self._last_heard_s = time.monotonic()
        self._synced = threading.Event()
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._asked = self._answered = 0  # number of lists requested by renew, and of those reported
        self._watch: Watch[T] | None = None
        self._thread = threading.Thread(target=self._run, name=f"mirror-{kind.plural}", daemon=True)
        self.lists = 0  # how many lists were completed; more than one means that the watch was lost

    def start(self) -> None:
        """Start the thread; call once."""
        KUBE_COUNTS.begin(self, self._kind.plural, self.silent_s)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread unless called from it."""
        self._stopping.set()
        KUBE_COUNTS.end(self)
        self._cut()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def synced(self, timeout_s: float = 0.0) -> bool:
        """Return True if the first list is complete and reported, waiting up to ``timeout_s``."""
        return self._synced.wait(timeout_s)

    def renew(self) -> None:
        """Request a new list. When :meth:`renewed` is True, all changes before this call have been reported."""
        with self._lock:
            self._asked += 1
        self._cut()

    def renewed(self) -> bool:
        """Return True if the last list requested by ``renew`` is complete and reported."""
        return self._synced.is_set() and self._answered == self._asked

    @property
    def plural(self) -> str:
        """Plural of the kind, as in paths."""
        return self._kind.plural

    def hurry(self) -> None:
        """Retry at once after a failure, without the usual pause. Called when the API server is known to answer again."""
        if self._failures:
            self._woken.set()

    def snapshot(self) -> dict[ObjectKey, T]:
        """Return a copy of all objects by (namespace, name)."""
        return self._cache.snapshot()

    def get(self, name: str, namespace: str = "") -> T | None:
        """Return the object in the cache, or None."""
        return self._cache.get((namespace, name))

    def __len__(self) -> int:
        return len(self._cache)

    def silent_s(self) -> float:
        """Return the seconds since the API server last sent anything; normally below 90 because of bookmarks."""
        return time.monotonic() - self._last_heard_s

    def _run(self) -> None:
        while not self._stopping.is_set():
            began, version = time.monotonic(), self._version
            wanted_s = 0.0  # pause that the API server asked for
            try:
                if self._answered != self._asked:
                    self._version = ""
                if not self._version:
                    self._list()
                self._list_more()
                self._follow()
                asked = self._answered != self._asked or self._wants_more()
                quick = time.monotonic() - began < _WATCH_SHORT_S and not asked
                self._failures = self._failures + 1 if quick and version == self._version else 0
            except Expired as error:
                self._version = ""
                self._failures += 1
                self._report_error(error)
            except Exception as error:  # any error: a mirror that ended would leave a stale cache
                self._failures += 1
                away = isinstance(error, CalabashError) and error.reason is Reason.API_DOWN
                overloaded = isinstance(error, KubeError) and error.status in _OVERLOADED
                if not away or (self._failures >= _RESUMES_MAX and not overloaded):
                    self._version = ""  # not for an overloaded server: a list costs it more than a watch
                wanted_s = min(error.retry_after_s, _RETRY_AFTER_MAX_S) if isinstance(error, KubeError) else 0.0
                self._report_error(error)
            if self._failures:
                pause = max(min(_BACKOFF_FIRST_S * 2 ** min(self._failures - 1, 10), _BACKOFF_MAX_S), 2 * wanted_s)
                self._woken.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            self._woken.clear()

    def _cut(self) -> None:
        """Wake the thread and close its watch, so that it sees a stop or a request for a new list at once."""
        self._woken.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()

    def _list(self) -> None:
        seen: set[ObjectKey] = set()
        version, asked = "", self._asked
        for page in self._client.pages(
            self._kind, self._namespace, label_selector=self._labels, field_selector=self._fields
        ):
            if self._stopping.is_set():
                return
            self._heard()
            version = page.resource_version
            for obj in page.items:
                seen.add(self._put(obj, self._cache.put))
            for skipped in page.skipped:
                seen.add(self._cache.skip(skipped))
                self._skipped(skipped)
        self._cache.retain(seen)
        self._version = version
        self._answered = asked
        self.lists += 1
        KUBE_COUNTS.listed(self._kind.plural)
        self._synced.set()

    def _wants_more(self) -> bool:
        """Return True if ``_list_more`` has anything to list."""
        return False

    def _list_more(self) -> None:
        """List further objects between watches. Does nothing here; a subclass may override it."""

    def _follow(self) -> None:
        if self._stopping.is_set():
            return
        watch = self._client.watch(
            self._kind, self._version, self._namespace, label_selector=self._labels, field_selector=self._fields
        )
        KUBE_COUNTS.watched(self._kind.plural)
        with self._lock:
            self._watch = watch
        try:
            if (
                self._stopping.is_set() or self._wants_more() or self._answered != self._asked
            ):  # there was no watch yet that could be closed
                return
            for event in watch:
                if self._stopping.is_set():
                    return
                self._heard()
                self._failures = 0
                self._apply(event)
                if event.skipped is not None and event.type is not WatchEventType.DELETED:
                    self._skipped(event.skipped)
                self._version = event.resource_version or self._version
        finally:
            watch.close()
            with self._lock:
                self._watch = None

    def _apply(self, event: WatchEvent[T]) -> None:
        obj = event.object
        if obj is None:
            self._cache.apply(event)
        else:
            self._put(obj, lambda _: self._cache.apply(event))

    def _put(self, obj: T, put: Callable[[T], object]) -> ObjectKey:
        """Call ``put``, which puts an object into the cache; skip the object if ``keep`` fails for it."""
        meta = obj.metadata
        try:
            put(obj)
        except Exception as error:
            self._unusable(obj, error)
            self._cache.skip(unusable(self._kind, obj, error))
        return (meta.namespace, meta.name)

    def _changed(self, change: MirrorChange[T]) -> None:
        if self._on_change is None or self._stopping.is_set():
            return
        try:
            self._on_change(change)
        except Exception as error:
            obj = change.after if change.after is not None else change.before
            if obj is not None:
                self._unusable(obj, error)

    def _unusable(self, obj: T, error: Exception) -> None:
        self._report_error(error)
        self._skipped(unusable(self._kind, obj, error))

    def _skipped(self, skipped: SkippedObject) -> None:
        if self._observer is None or self._stopping.is_set():
            return
        try:
            self._observer.object_skipped(skipped)
        except Exception as error:
            self._report_error(error)

    def _heard(self) -> None:
        self._last_heard_s = time.monotonic()

    def _report_error(self, error: Exception) -> None:
        if self._observer is not None and not self._stopping.is_set():
            self._observer.mirror_failed(self._kind, error)


def unusable(kind: Kind[Any], obj: KubeObject, error: Exception) -> SkippedObject:
    """Return the description of an object that was read and could not be processed."""
    meta = obj.metadata
    return SkippedObject(
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        error=f"{kind.name} {meta.namespace}/{meta.name} cannot be used: {type(error).__name__}: {str(error)[:_ERROR_MAX]}",
    )
