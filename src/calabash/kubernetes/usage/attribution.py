"""Attribute usage records to tenants and projects, by the pod in the API server.

Theory of operation. Records come from nodes, which are trusted only as far as the API server confirms what they say.
Usage of a pod that runs on another node than the sender is attributed to no tenant, and an event tells the operator.
For a pod that no longer exists, the namespace and the queue in the record are used, and an event reports that as well.
The queue of a pod is the one with which it was admitted, or else the default queue of its namespace. The tenant is the
root of the tree that contains the queue, and the project is the queue directly below the root.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calabash.adapters.kube import KubeClient, UnreadableObject
from calabash.adapters.kube.objects.core import NAMESPACE, POD, Namespace, Pod
from calabash.adapters.kube.objects.resources import QUEUE as QUEUE_KIND
from calabash.api.collected import UsageEntry
from calabash.kubernetes.objects.names import QUEUE, QUEUES, REQUEST
from calabash.kubernetes.pod_request import read_request
from calabash.model.errors import CalabashError
from calabash.model.request import DEFAULT_QUEUE
from calabash.node.membership.container import pod_digits

TREE_S = 10.0
DOUBT_S = 60.0
OWN_PROJECT = "default"
_REMEMBERED_MAX = 50_000
_DEPTH_MAX = 64

TenantOfQueue = Callable[[str], tuple[str, str]]
"""Tenant and project of a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAccount:
    """Tenant, project and queue that pay for a record.

    Args:
        tenant, project, queue: names; all are "" if no tenant pays.
        user: user name that is stored with the usage: ``namespace:NAME``, or ``node NAME`` if no tenant pays.
        doubt: the reason why the API server does not confirm the record; "" if it does.
    """

    tenant: str
    project: str
    queue: str
    user: str
    doubt: str = ""


def tenant_of(queue: str, parents: Mapping[str, str]) -> tuple[str, str]:
    """Return the tenant and the project of a queue.

    Args:
        parents: the parent of each queue; queues that are missing or have "" are roots.
    """
    way = [queue]
    while (above := parents.get(way[-1], "")) and above not in way and len(way) < _DEPTH_MAX:
        way.append(above)
    return way[-1], way[-2] if len(way) > 1 else OWN_PROJECT


class TenantTree:
    """The tree of the cluster's Queue objects. It is cached for ``TREE_S`` seconds."""

    def __init__(self, client: KubeClient, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now_s = now_s
        self._read_s = float("-inf")
        self._parents: dict[str, str] = {}

    def __call__(self, queue: str) -> tuple[str, str]:
        """Return the tenant and the project of a queue. Raises CalabashError if the API server does not answer."""
        if self._now_s() - self._read_s >= TREE_S:
            found = self._client.list(QUEUE_KIND).items
            self._parents = {one.metadata.name: one.spec.parent for one in found}
            self._read_s = self._now_s()
        return tenant_of(queue, self._parents)


class Attribution:
    """Attribution of usage records. Must be used by one thread at a time.

    The queue of each allocation is cached, so that its pod is read from the API server only once.

    Args:
        client: client of the API server.
        tenant_of_queue: returns the tenant and the project of a queue.
        now_s: returns monotonic time in seconds.
    """

    def __init__(
        self, client: KubeClient, tenant_of_queue: TenantOfQueue, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._tenant_of_queue = tenant_of_queue
        self._now_s = now_s
        self._queues: OrderedDict[tuple[str, str], tuple[str, str, float]] = OrderedDict()

    def knows(self, node: str, entry: UsageEntry) -> bool:
        """Return True if a record can be attributed without reading its pod from the API server."""
        known = self._queues.get((node, entry.allocation))
        return known is not None and self._now_s() < known[2]

    def account_of(self, node: str, entry: UsageEntry) -> UsageAccount:
        """Return the account that pays for a record.

        Args:
            node: the node that sent the record.
            entry: the record.

        Raises:
            CalabashError: the API server does not answer.
        """
        key = (node, entry.allocation)
        if not self.knows(node, entry):
            queue, doubt = self._queue(node, entry)
            until_s = self._now_s() + DOUBT_S if doubt else float("inf")  # a doubt may be settled
            self._queues[key] = queue, doubt, until_s
            self._queues.move_to_end(key)
            while len(self._queues) > _REMEMBERED_MAX:
                self._queues.popitem(last=False)
        queue, doubt, _ = self._queues[key]
        if not queue:
            return UsageAccount(tenant="", project="", queue="", user=f"node {node}"[:128], doubt=doubt)
        tenant, project = self._tenant_of_queue(queue)
        # No user of the API can have such a name, so no user named like a namespace sees the usage of its pods.
        user = f"namespace:{entry.namespace}"
        return UsageAccount(tenant=tenant, project=project, queue=queue, user=user, doubt=doubt)

    def _queue(self, node: str, entry: UsageEntry) -> tuple[str, str]:
        """Return the queue that a record is charged to, and the reason why the record is doubtful; each may be ""."""
        pod = self._pod(entry)
        if pod is not None and pod.spec.node_name != node:
            where = pod.spec.node_name or "no node"
            return "", f"pod {entry.namespace}/{entry.pod} is on {where}, not on {node}, which sends usage of it"
        namespace = self._client.get(NAMESPACE, entry.namespace)
        if pod is not None:
            return _own_queue(pod) or _given_queue(namespace), ""
        doubt = f"pod {entry.namespace}/{entry.pod} is gone: what node {node} says of it is believed"
        given = _given_queue(namespace)
        return (entry.queue if entry.queue != DEFAULT_QUEUE and _may_use(namespace, entry.queue) else given), doubt

    def _pod(self, entry: UsageEntry) -> Pod | None:
        try:
            found = self._client.get(POD, entry.pod, entry.namespace)
        except (ValueError, UnreadableObject):  # not a name that a pod can have, or a pod that cannot be read
            return None
        if found is None or pod_digits(found.metadata.uid) != entry.allocation.partition("-")[0]:
            return None
        return found


def _own_queue(pod: Pod) -> str:
    text = pod.metadata.annotations.get(REQUEST)
    try:
        return read_request(text).queue if text is not None else ""
    except CalabashError:
        return ""


def _given_queue(namespace: Namespace | None) -> str:
    return (namespace.metadata.labels.get(QUEUE, "") if namespace is not None else "") or DEFAULT_QUEUE


def _may_use(namespace: Namespace | None, queue: str) -> bool:
    if namespace is None:
        return False
    allowed = {word.strip() for word in namespace.metadata.annotations.get(QUEUES, "").split(",")}
    return not allowed.isdisjoint((queue, "*"))
