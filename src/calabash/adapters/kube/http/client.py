"""Client of the API server over HTTP."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from calabash.adapters.kube.errors import AnswerTooLarge, error_for, read_status
from calabash.adapters.kube.http.access import ApiAccess, in_cluster
from calabash.adapters.kube.http.kubeconfig import from_kubeconfig
from calabash.adapters.kube.http.transport import ANSWER_BYTES_MAX, HttpAnswer, HttpOrder, Transport
from calabash.adapters.kube.http.watching import HttpWatch
from calabash.adapters.kube.http.wire import (
    PATCH_TYPES,
    ResourceList,
    by_budget,
    decode,
    decode_object,
    decode_page,
    delete_options,
    selectors,
    whole,
)
from calabash.adapters.kube.objects.core import POD
from calabash.adapters.kube.objects.meta import Kind, T
from calabash.adapters.kube.protocol import (
    Evicted,
    EvictedAs,
    Listing,
    PatchBody,
    PatchStyle,
    SkippedObject,
    Watch,
)

PAGE = 500
PAGE_BYTES_MAX = 32 << 20  # a larger page is requested again in smaller ones
_SILENCE_S = 100.0  # bookmarks come about every minute
_WATCH_S = (300, 600)
_JSON = "application/json"
_RESOURCES = msgspec.json.Decoder(ResourceList)


class _Calls:
    """Calls that end within a time-out, with their answers decoded or turned into errors."""

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s

    def _object(self, kind: Kind[T], answer: HttpAnswer, asked: str) -> T:
        return decode_object(kind, self._good(answer, asked), asked)

    def _good(self, answer: HttpAnswer, asked: str) -> bytes:
        if answer.status >= 400:
            raise error_for(asked, answer.status, read_status(answer.body), retry_after_s=answer.retry_after_s)
        return answer.body

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "",
        repeatable: bool = False,
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> HttpAnswer:
        """Make a call; repeat it while the API server answers 429 and the time-out allows it.

        Args:
            repeatable: True if the call may be sent again when its connection turns out to be closed.
            bytes_max: largest answer that is read.
        """
        deadline = time.monotonic() + self._timeout_s
        target = f"{path}?{urlencode(query)}" if query else path
        while True:
            answer = self._transport.call(
                HttpOrder(
                    method=method,
                    target=target,
                    body=body,
                    content_type=content_type,
                    timeout_s=max(deadline - time.monotonic(), 0.1),
                    repeatable=repeatable or method == "GET",
                    bytes_max=bytes_max,
                )
            )
            pause = max(answer.retry_after_s, 0.1) * random.uniform(1.0, 1.2)  # noqa: S311 - jitter
            if answer.status != 429 or by_budget(answer.body) or time.monotonic() + pause >= deadline:
                return answer
            time.sleep(pause)


class HttpKubeClient(_Calls):
    """``KubeClient`` over HTTP.

    Args:
        access: address and credentials of the API server.
        timeout_s: longest time of a call, including the wait for a free connection.
        connections: largest number of concurrent calls.
        agent: user agent, which API servers log.
        transport: connections to share with another client; ``connections`` and ``agent`` are then those of that
            client.
    """

    def __init__(
        self,
        access: ApiAccess,
        *,
        timeout_s: float = 30.0,
        connections: int = 16,
        agent: str = "calabash",
        transport: Transport | None = None,
    ) -> None:
        super().__init__(transport or Transport(access, connections=connections, agent=agent), timeout_s)
        self._access = access
        self.namespace = access.namespace

    def within(self, timeout_s: float) -> HttpKubeClient:
        return HttpKubeClient(self._access, timeout_s=timeout_s, transport=self._transport)

    def serves(self, kind: Kind[Any]) -> bool:
        path = kind.path().rpartition("/")[0]
        answer = self._answer("GET", path)
        if answer.status == 404:
            return False
        found = decode(_RESOURCES, self._good(answer, f"GET {path}"), f"GET {path}")
        return any(resource.name == kind.plural for resource in found.resources)

    def get(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        path = kind.path(namespace, name)
        answer = self._answer("GET", path)
        if answer.status == 404:
            return None
        return self._object(kind, answer, f"GET {path}")

    def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        items: list[T] = []
        skipped: list[SkippedObject] = []
        version = ""
        for page in self.pages(kind, namespace, label_selector=label_selector, field_selector=field_selector):
            items += page.items
            skipped += page.skipped
            version = page.resource_version
        return Listing(items=tuple(items), resource_version=version, skipped=tuple(skipped))

    def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Iterator[Listing[T]]:
        path = kind.path(namespace)
        asked = f"GET {path}"
        size = PAGE
        query = selectors(label_selector, field_selector)
        while True:
            query["limit"] = str(size)
            try:
                answer = self._answer("GET", path, query, bytes_max=PAGE_BYTES_MAX)
            except AnswerTooLarge:
                if size == 1:
                    raise
                size = max(size // 8, 1)
                continue
            page, next_page = decode_page(kind, self._good(answer, asked), asked)
            yield page
            if not next_page:
                return
            query["continue"] = next_page

    def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Watch[T]:
        path = kind.path(namespace)
        query = selectors(label_selector, field_selector) | {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_WATCH_S)),  # noqa: S311 - spreads the load
        }
        order = HttpOrder(method="GET", target=f"{path}?{urlencode(query)}", timeout_s=self._timeout_s)
        stream = self._transport.stream(order, _SILENCE_S)
        if stream.status != 200:
            try:
                body = stream.read()
            finally:
                stream.release()
            status = read_status(body)
            raise error_for(f"watch of {path}", stream.status, status, retry_after_s=stream.retry_after_s)
        return HttpWatch(kind, stream, f"watch of {path}")

    def create(self, kind: Kind[T], obj: T | Mapping[str, Any], namespace: str = "") -> T:
        path = kind.path(namespace)
        answer = self._answer("POST", path, body=whole(kind, obj), content_type=_JSON)
        return self._object(kind, answer, f"POST {path}")

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
        path = kind.path(namespace, name, subresource)
        query = {"fieldManager": field_manager} if field_manager else {}
        if style == "apply":
            if not isinstance(body, Mapping):
                raise TypeError("apply takes a mapping")
            meta = {"name": name, **body.get("metadata", {})}
            body = {"apiVersion": kind.api_version, "kind": kind.name, **body, "metadata": meta}
            query |= {"force": "true"} if force else {}
        answer = self._answer(
            "PATCH",
            path,
            query,
            body=msgspec.json.encode(body),
            content_type=PATCH_TYPES[style],
            repeatable=style != "json",
        )
        return self._object(kind, answer, f"PATCH {path}")

    def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", grace_s: int | None = None
    ) -> bool:
        path = kind.path(namespace, name)
        answer = self._answer("DELETE", path, body=delete_options(uid, grace_s), content_type=_JSON)
        if answer.status == 404 or (answer.status == 409 and uid and read_status(answer.body).reason == "Conflict"):
            return False
        self._good(answer, f"DELETE {path}")
        return True

    def bind(
        self, namespace: str, name: str, uid: str, node: str, *, annotations: Mapping[str, str] | None = None
    ) -> None:
        path = POD.path(namespace, name, "binding")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations or {}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        answer = self._answer("POST", path, body=msgspec.json.encode(body), content_type=_JSON)
        self._good(answer, f"POST {path}")

    def evict(self, namespace: str, name: str, uid: str, *, grace_s: int | None = None) -> Evicted:
        path = POD.path(namespace, name, "eviction")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": msgspec.Raw(delete_options(uid, grace_s)),
        }
        answer = self._answer("POST", path, body=msgspec.json.encode(body), content_type=_JSON)
        reply = read_status(answer.body) if answer.status >= 400 else None
        if reply is None:
            return Evicted(as_=EvictedAs.OK)
        if answer.status == 404 or (answer.status == 409 and reply.reason == "Conflict"):
            return Evicted(as_=EvictedAs.GONE, message=reply.message)
        if answer.status == 429 and by_budget(answer.body):
            causes = reply.details.causes if reply.details is not None else ()
            return Evicted(as_=EvictedAs.BLOCKED, message=causes[0].message or reply.message)
        raise error_for(f"POST {path}", answer.status, reply, retry_after_s=answer.retry_after_s)

    def close(self) -> None:
        """Close idle connections; the client can still be used."""
        self._transport.close()


def load_client(
    kubeconfig: str | os.PathLike[str] = "", context: str = "", *, connections: int = 16, agent: str = "calabash"
) -> HttpKubeClient:
    """Return a client of the API server. Raises CalabashError(BAD_FILE) if its access cannot be used.

    The access is the first of these that exists: the file ``kubeconfig``, the service account of the pod in which this
    process runs, the first file of $KUBECONFIG, and ~/.kube/config.

    Args:
        context: context of the kubeconfig file; "" for its current one.
        connections: largest number of concurrent calls.
        agent: user agent, which API servers log.
    """
    if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
        return HttpKubeClient(in_cluster(), connections=connections, agent=agent)
    path = kubeconfig or os.environ.get("KUBECONFIG", "").partition(":")[0] or "~/.kube/config"
    access = from_kubeconfig(Path(path).expanduser(), context)
    return HttpKubeClient(access, connections=connections, agent=agent)
