"""API server in memory that answers chosen writes with an error status, as a real one would."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from calabash.adapters.kube import Evicted, EvictedAs
from calabash.adapters.kube.errors import StatusReply, error_for
from calabash_testing.api_server.client import MemoryKube

Refuse = Callable[[str, str, str, Any], int]
"""Status for a write: its verb with the subresource ("patch", "patch status", "bind"), plural, namespace, body; 0: made."""


class RefusingKube:
    """A ``KubeClient`` that asks ``refuse`` before each write, and counts the writes by (verb, plural, namespace).

    Args:
        retry_after_s: time after which a refusal asks the client to retry; 0: a refusal names none.
    """

    def __init__(self, client: MemoryKube, refuse: Refuse, *, retry_after_s: float = 0.0) -> None:
        self._client = client
        self.refuse = refuse
        self.retry_after_s = retry_after_s
        self.tried: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def within(self, timeout_s: float) -> RefusingKube:
        return self

    def create(self, kind: Any, obj: Any, namespace: str = "") -> Any:
        self._check("create", kind.plural, namespace, obj)
        return self._client.create(kind, obj, namespace)

    def patch(self, kind: Any, name: str, namespace: str = "", **more: Any) -> Any:
        verb = f"patch {more['subresource']}" if more.get("subresource") else "patch"
        self._check(verb, kind.plural, namespace, more.get("body"))
        return self._client.patch(kind, name, namespace, **more)

    def delete(self, kind: Any, name: str, namespace: str = "", **more: Any) -> Any:
        self._check("delete", kind.plural, namespace, None)
        return self._client.delete(kind, name, namespace, **more)

    def bind(self, namespace: str, name: str, uid: str, node: str, **more: Any) -> None:
        self._check("bind", "pods", namespace, more)
        self._client.bind(namespace, name, uid, node, **more)

    def evict(self, namespace: str, name: str, uid: str, **more: Any) -> Evicted:
        status = self._status("evict", "pods", namespace, None)
        if status in (404, 409):
            return Evicted(as_=EvictedAs.GONE, message="no such pod")
        self._raise("evict", "pods", status)
        return self._client.evict(namespace, name, uid, **more)

    def _check(self, verb: str, plural: str, namespace: str, body: Any) -> None:
        self._raise(verb, plural, self._status(verb, plural, namespace, body))

    def _status(self, verb: str, plural: str, namespace: str, body: Any) -> int:
        with self._lock:
            self.tried[verb, plural, namespace] += 1
        return self.refuse(verb, plural, namespace, body)

    def _raise(self, verb: str, plural: str, status: int) -> None:
        if status:
            reply = StatusReply(message=f"refused with {status}", code=status)
            raise error_for(f"{verb} {plural}", status, reply, retry_after_s=self.retry_after_s)
