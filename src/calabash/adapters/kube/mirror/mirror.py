"""A cache of all objects of a kind, kept by list and watch.

Theory of operation: a thread lists in pages, then watches from where the list ended. What it tells is a sequence of changes
that turns the empty cache into the API server's state, whatever happens on the way:

* a watch that ends or breaks is begun again at the last version seen, so nothing is lost in between;
* a version that is too old (410, as an answer or as an event), or a server that does not know the version (a restored
  etcd), leads to a new list, and the differences to the cache are told as changes: deletes that were missed among them;
* an object that was deleted and made again under the same name is told as a delete and an add, never as a modification;
* a line that is silent for longer than bookmarks are apart is taken for broken;
* an object that cannot be read is left out and told to ``on_skipped``; all others are held and told as ever;
* whoever must not miss what was written before now, however long ago a watch broke, asks for a new list (``renew``).

Pages are compared one by one and unchanged objects are kept, so a new list needs no memory for a second copy.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Generic

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


class Mirror(Generic[T]):
    """All objects of a kind that the selectors match, by (namespace, name).

    Args:
        client: the API server.
        kind: what to hold; give a kind with a narrow type to hold less.
        on_change: called from the mirror's thread for every change in order, with no lock held; the cache shows the change
            already. It must not block for long. It is never called after ``stop`` has returned.
        on_error: told of every failure; a mirror goes on by itself. A fault in ``on_change`` is told here as well.
        on_skipped: told of every version of an object that cannot be read, or on which ``on_change``, ``keep`` or ``only``
            fails, from the mirror's thread; after a new list again.
        keep: what of an object to hold and tell, when that is less than all of it (``sharing``).
        only: which objects to hold, where no selector can say it; the others are read and dropped.
        namespace, label_selector, field_selector: what of the kind.
    """

    def __init__(
        self,
        client: KubeClient,
        kind: Kind[T],
        *,
        on_change: Callable[[MirrorChange[T]], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
        on_skipped: Callable[[SkippedObject], None] | None = None,
        keep: Callable[[T], T] | None = None,
        only: Callable[[T], bool] | None = None,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self._client = client
        self._kind = kind
        self._on_change = on_change
        self._on_error = on_error
        self._on_skipped = on_skipped
        self._cache = MirrorCache(self._changed, keep, only)
        self._namespace = namespace
        self._labels, self._fields = label_selector, field_selector
        self._lock = threading.Lock()
        self._version = ""
        self._failures = 0
        self._contact = time.monotonic()
        self._synced = threading.Event()
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._asked = self._answered = 0  # new lists that were asked for, and up to which one they were told
        self._watch: Watch[T] | None = None
        self._thread = threading.Thread(target=self._run, name=f"mirror-{kind.plural}", daemon=True)
        self.lists = 0  # how many lists were completed; more than one means that the watch was lost

    def start(self) -> None:
        """Begin; once."""
        KUBE_COUNTS.begin(self, self._kind.plural, self.silent_s)
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread (unless called from it)."""
        self._stopping.set()
        KUBE_COUNTS.end(self)
        self._cut()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def synced(self, timeout_s: float = 0.0) -> bool:
        """Whether the first list is complete and told, waiting at most so long for it."""
        return self._synced.wait(timeout_s)

    def renew(self) -> None:
        """List anew: ``renewed`` says when everything that was written before this call has been told."""
        with self._lock:
            self._asked += 1
        self._cut()

    def renewed(self) -> bool:
        """Whether the last list that was asked for is complete and told."""
        return self._synced.is_set() and self._answered == self._asked

    @property
    def plural(self) -> str:
        """What it holds, as its path names it."""
        return self._kind.plural

    def hurry(self) -> None:
        """The API server answers, as somebody noticed: try now what failed."""
        if self._failures:
            self._woken.set()

    def snapshot(self) -> dict[ObjectKey, T]:
        """All objects as they are now, by (namespace, name)."""
        return self._cache.snapshot()

    def get(self, name: str, namespace: str = "") -> T | None:
        """One object as the cache has it."""
        return self._cache.get((namespace, name))

    def __len__(self) -> int:
        return len(self._cache)

    def silent_s(self) -> float:
        """Seconds since the API server was last heard of by this mirror. In good order it is below 90 (bookmarks)."""
        return time.monotonic() - self._contact

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
                self._tell(error)
            except Exception as error:  # whatever it was: a mirror that ended would be a cache that lies
                self._failures += 1
                away = isinstance(error, CalabashError) and error.reason is Reason.API_DOWN
                overloaded = isinstance(error, KubeError) and error.status in _OVERLOADED
                if not away or (self._failures >= _RESUMES_MAX and not overloaded):
                    self._version = ""  # not for an overloaded server: a list costs it more than a watch
                wanted_s = min(error.retry_after_s, _RETRY_AFTER_MAX_S) if isinstance(error, KubeError) else 0.0
                self._tell(error)
            if self._failures:
                pause = max(min(_BACKOFF_FIRST_S * 2 ** min(self._failures - 1, 10), _BACKOFF_MAX_S), 2 * wanted_s)
                self._woken.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            self._woken.clear()

    def _cut(self) -> None:
        """Have the thread look what it is to do, whatever it waits for."""
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
        """Whether anything is to be listed besides."""
        return False

    def _list_more(self) -> None:
        """List it."""

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
        """Put an object into the cache. One on which ``keep`` or ``only`` fails is skipped, as one that cannot be read."""
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
        self._tell(error)
        self._skipped(unusable(self._kind, obj, error))

    def _skipped(self, skipped: SkippedObject) -> None:
        if self._on_skipped is None or self._stopping.is_set():
            return
        try:
            self._on_skipped(skipped)
        except Exception as error:
            self._tell(error)

    def _heard(self) -> None:
        self._contact = time.monotonic()

    def _tell(self, error: Exception) -> None:
        if self._on_error is not None and not self._stopping.is_set():
            self._on_error(error)


def unusable(kind: Kind[Any], obj: KubeObject, error: Exception) -> SkippedObject:
    """Describe an object that was read and with which a program could do nothing."""
    meta = obj.metadata
    return SkippedObject(
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        error=f"{kind.name} {meta.namespace}/{meta.name} cannot be used: {type(error).__name__}: {str(error)[:_ERROR_MAX]}",
    )
