"""Request handler of ``external.metrics.k8s.io/v1beta1``: the list of metrics, and the value of one metric."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from calabash.adapters.kube import KubeClient, Mirror
from calabash.adapters.kube.objects.core import POD
from calabash.adapters.kube.objects.resources import QUEUE
from calabash.kubernetes.metrics.series import OF_PODS, OF_QUEUES, PodUse, quantity, queue_in, summed, uses_of
from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1 import HttpQuestion, HttpReply

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
_ROOT = f"/apis/{GROUP}/{VERSION}"
_ANSWER_S = 10.0
_STATUS = {
    Reason.BAD_REQUEST: (HTTPStatus.BAD_REQUEST, "BadRequest"),
    Reason.NOT_FOUND: (HTTPStatus.NOT_FOUND, "NotFound"),
    Reason.NOT_PERMITTED: (HTTPStatus.FORBIDDEN, "Forbidden"),
    Reason.TIMEOUT: (HTTPStatus.GATEWAY_TIMEOUT, "Timeout"),
}
_UNWELL = (HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable")


class MetricsService:
    """Answer requests for metrics.

    Args:
        client: client of the API server, which is asked for the pods or the queue that a request selects.
        nodes: mirror of the GpuNodes, with the used amounts of slices.
    """

    def __init__(self, client: KubeClient, nodes: Mirror[Any]) -> None:
        self._client = client
        self._nodes = nodes
        self._uses: Mapping[str, PodUse] = {}
        self._stale = True

    def changed(self) -> None:
        """Mark the cached values as outdated after a change of a GpuNode; may be called from any thread."""
        self._stale = True

    async def handle(self, question: HttpQuestion) -> HttpReply:
        """Answer one HTTP request for the list of metrics or the value of one."""
        if question.method != "GET":
            return HttpReply(status=HTTPStatus.METHOD_NOT_ALLOWED)
        if question.path == _ROOT:
            return _json(resources())
        parts = [unquote(part) for part in question.path.removeprefix(f"{_ROOT}/namespaces/").split("/")]
        if not question.path.startswith(f"{_ROOT}/namespaces/") or len(parts) != 2:
            return _refusal(CalabashError(f"{question.path[:256]} is not served here", reason=Reason.NOT_FOUND))
        selector = parse_qs(question.query).get("labelSelector", [""])[0]
        try:
            value = await asyncio.wait_for(asyncio.to_thread(self.value, parts[0], parts[1], selector), _ANSWER_S)
        except TimeoutError:
            return _refusal(CalabashError("the API server did not answer in time", reason=Reason.TIMEOUT))
        except CalabashError as error:
            return _refusal(error)
        return _json(_values(parts[1], value))

    def value(self, namespace: str, name: str, selector: str) -> float | None:
        """Return the value of a metric; None if it is not reported.

        Args:
            namespace: namespace of the pods; ignored for metrics of queues.
            name: name of the metric.
            selector: label selector of pods, or ``queue=NAME`` for a metric of a queue.

        Raises:
            CalabashError: the metric or the queue does not exist, or the API server does not answer.
        """
        if name in OF_PODS:
            pods = self._client.list(POD, namespace, label_selector=selector).items
            uses = self._current()
            return summed(name, [uses[uid] for pod in pods if (uid := pod.metadata.uid) in uses])
        if name in OF_QUEUES:
            queue = queue_in(selector)
            found = self._client.get(QUEUE, queue)
            if found is None:
                raise CalabashError(f"there is no queue {queue}", reason=Reason.NOT_FOUND, hint="kubectl get queues")
            return OF_QUEUES[name](found.status)
        known = ", ".join((*OF_PODS, *OF_QUEUES))
        raise CalabashError(f"there is no metric {name[:128]!r}", reason=Reason.NOT_FOUND, hint=f"one of: {known}")

    def _current(self) -> Mapping[str, PodUse]:
        if self._stale:
            self._stale = False
            self._uses = uses_of(self._nodes.snapshot().values())
        return self._uses


def resources() -> dict[str, Any]:
    """Return the discovery document of the API group."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [
            {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            for name in (*OF_PODS, *OF_QUEUES)
        ],
    }


def _values(name: str, value: float | None) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    item = {"metricName": name, "metricLabels": {}, "timestamp": now, "value": quantity(value or 0.0)}
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {},
        "items": [] if value is None else [item],
    }


def _json(body: Mapping[str, Any]) -> HttpReply:
    return HttpReply(body=msgspec.json.encode(body))


def _refusal(error: CalabashError) -> HttpReply:
    """Return the error as a Kubernetes ``Status`` object, whose message autoscalers show to their users."""
    code, word = _STATUS.get(error.reason, _UNWELL)
    text = f"{error.message}; hint: {error.hint}" if error.hint else error.message
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": text,
        "reason": word,
        "code": int(code),
    }
    return HttpReply(status=code, body=msgspec.json.encode(body))
