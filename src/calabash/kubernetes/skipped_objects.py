"""Observer of the mirrors of a program: report objects that are skipped because they cannot be decoded or used.

A user can store objects that no program of the product can decode. Mirrors continue without such objects. Each version
of such an object is counted, logged once, and reported to the object's owner by one Warning event with the reason
``Skipped``. A separate thread writes the events one by one, with a pause between two, so that a large number of such
objects delays nothing but their own reports.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import structlog

from calabash.adapters.kube import Kind, KubeClient, SkippedObject
from calabash.adapters.kube.objects.core import EVENT
from calabash.model.errors import CalabashError

log = structlog.get_logger(__name__)

REASON = "Skipped"
EVERY_S = 1.0
_KNOWN_MAX = 10_000  # limit of object versions that are remembered as reported
_WAITING_MAX = 1000  # limit of events that wait to be written; further ones are dropped
_MESSAGE_MAX = 1024
_CLUSTER_NAMESPACE = "default"  # namespace of events of cluster-scoped objects


class SkippedObjects:
    """Count and report the skipped objects of mirrors, and log failed watches. See ``MirrorObserver``.

    The methods of the observer may be called from any thread and never block.

    Args:
        component: name of the program in events.
        client: client of the API server that writes the events; None if the program has no right to write events, so
            that objects are only counted and logged.
        every_s: seconds between two events.
    """

    def __init__(self, component: str, client: KubeClient | None = None, *, every_s: float = EVERY_S) -> None:
        self._component = component
        self._client = client
        self._every_s = every_s
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str, str, str], None] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._waiting: queue.Queue[SkippedObject | None] = queue.Queue(_WAITING_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="skipped-objects", daemon=True)

    def start(self) -> None:
        if self._client is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the event that is being written; events that wait are dropped."""
        self._stopping.set()
        with suppress(queue.Full):  # a full queue wakes the thread anyway
            self._waiting.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join()

    def mirror_failed(self, kind: Kind[Any], error: Exception) -> None:
        """Log the failure; the mirror repeats its watch."""
        log.info("a watch ended and is restarted", kind=kind.plural, error=str(error))

    def object_skipped(self, skipped: SkippedObject) -> None:
        """Report a skipped object. Each version of an object is reported once."""
        key = (skipped.kind.path(), skipped.namespace, skipped.name, skipped.uid + "/" + skipped.resource_version)
        with self._lock:
            known = key in self._known
            self._known[key] = None
            self._known.move_to_end(key)
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
            if known:
                return
            self._counts[skipped.kind.plural] += 1
        log.warning("an object is skipped", kind=skipped.kind.name, error=skipped.error)
        if self._client is not None and skipped.name:
            try:
                self._waiting.put_nowait(skipped)
            except queue.Full:
                log.info(
                    "too many objects are skipped: no event for this one", kind=skipped.kind.name, name=skipped.name
                )

    def counts(self) -> dict[str, int]:
        """Return the number of object versions that were skipped since the start, by the resource of their kind."""
        with self._lock:
            return dict(self._counts)

    def _run(self) -> None:
        while (skipped := self._waiting.get()) is not None and not self._stopping.is_set():
            try:
                self._write(skipped)
            except (CalabashError, ValueError) as error:  # ValueError: a name that no object can have
                log.info("the event of a skipped object was not written", name=skipped.name, error=str(error))
            except Exception:
                log.exception("the event of a skipped object was not written")
            self._stopping.wait(self._every_s)

    def _write(self, skipped: SkippedObject) -> None:
        """Create the event for a skipped object unless another program has created it.

        The name of the event is derived from the version of the object, so all programs that skip it use the same name.
        """
        assert self._client is not None
        kind, now = skipped.kind, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        version = f"{kind.path()}/{skipped.uid}/{skipped.resource_version}"
        name = f"{skipped.name[:200]}.{blake2b(version.encode(), digest_size=8).hexdigest()}"
        namespace = skipped.namespace or _CLUSTER_NAMESPACE
        if self._client.get(EVENT, name, namespace) is not None:
            return
        text = f"{skipped.error}; hint: calabash leaves the object out until it is written in a readable form"
        self._client.create(
            EVENT,
            {
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": kind.api_version,
                    "kind": kind.name,
                    "name": skipped.name,
                    "namespace": skipped.namespace,
                    "uid": skipped.uid,
                    "resourceVersion": skipped.resource_version,
                },
                "type": "Warning",
                "reason": REASON,
                "message": text[:_MESSAGE_MAX],
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": self._component},
                "reportingComponent": self._component,
            },
            namespace,
        )
