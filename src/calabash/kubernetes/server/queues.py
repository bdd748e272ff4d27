"""Create, change and delete Queue objects in the API server, except those that belong to a tenant.

The queues of a tenant follow from the tenant and its projects (``tenant_reconciler``).
"""

from __future__ import annotations

import re
from typing import Any

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.resources import QUEUE, KubeQueue
from calabash.api import requests
from calabash.kubernetes.objects import names
from calabash.kubernetes.server.state import ClusterState
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason
from calabash.platform.settings_changes import changed_queue, require_presence
from calabash.sched import QUEUE_DEPTH_MAX, queue_levels, queue_too_deep

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?")


class QueueWriter:
    """Write queues to the API server. Methods raise CalabashError if a change is refused; nothing is then changed."""

    def __init__(self, client: KubeClient, state: ClusterState) -> None:
        self._client = client
        self._state = state

    def put(self, name: str, wanted: requests.QueueSettings) -> None:
        """Create a queue, or change those fields of an existing one that are set in ``wanted``.

        Raises:
            CalabashError: CONFLICT for a tenant's queue or a concurrent change, BAD_REQUEST if the tree of queues would
                have more than QUEUE_DEPTH_MAX levels.
        """
        if _NAME.fullmatch(name) is None:
            raise CalabashError(
                f"queue name {name[:80]!r} is not usable on Kubernetes",
                hint="at most 63 lower-case letters, digits, - and .; queues of tenants follow from the tenants",
            )
        known = self._own(name)
        require_presence("queue", name, exists=known is not None, new=wanted.new)
        record = changed_queue(_record(known) if known is not None else QueueRecord(name=name), wanted)
        self._require_depth(name, record.parent)
        spec: dict[str, Any] = {
            "parent": record.parent,
            "deserved": record.deserved,
            "limit": record.limit,
            "weight": record.weight,
            "users": list(record.users),
            "groups": list(record.groups),
        }
        if known is not None:
            meta = {"resourceVersion": known.metadata.resource_version}
            self._client.patch(QUEUE, name, body={"metadata": meta, "spec": spec})
            return
        body = {"apiVersion": QUEUE.api_version, "kind": QUEUE.name, "metadata": {"name": name}}
        self._client.create(QUEUE, body | {"spec": {k: v for k, v in spec.items() if v is not None}})

    def delete(self, name: str) -> None:
        """Delete a queue.

        Raises:
            CalabashError: NOT_FOUND if there is no such queue, CONFLICT while pods use it or if it is a tenant's queue.
        """
        known = self._own(name) if _NAME.fullmatch(name) else None
        if known is None:
            raise CalabashError(f"there is no queue {name[:80]}", reason=Reason.NOT_FOUND, hint="kubectl get queues")
        if any(self._state.queue_of(pod.facts) == name for pod in self._state.pods()):
            raise CalabashError(
                f"queue {name} has pods", reason=Reason.CONFLICT, hint="wait for them, or delete them first"
            )
        self._client.delete(QUEUE, name, uid=known.metadata.uid)

    def _require_depth(self, name: str, parent: str) -> None:
        """Raise CalabashError if the new parent puts the queue, or a queue below it, on a level beyond QUEUE_DEPTH_MAX.

        Descendants that are too deep already do not prevent the change.
        """
        parents = {queue.metadata.name: queue.spec.parent for queue in self._state.queues()}
        before, after = queue_levels(parents), queue_levels(parents | {name: parent})
        for one, level in after.items():
            if level > QUEUE_DEPTH_MAX and (one == name or before[one] <= QUEUE_DEPTH_MAX):
                raise queue_too_deep(one, level)

    def _own(self, name: str) -> KubeQueue | None:
        known = self._state.queue(name)
        tenant = known.metadata.labels.get(names.TENANT) if known is not None else None
        if tenant:
            raise CalabashError(
                f"queue {name} belongs to tenant {tenant}",
                reason=Reason.CONFLICT,
                hint=f"change the tenant, or its projects: calabash tenant set {tenant}",
            )
        return known


def _record(queue: KubeQueue) -> QueueRecord:
    spec = queue.spec
    return QueueRecord(
        name=queue.metadata.name,
        parent=spec.parent,
        deserved=spec.deserved,
        limit=spec.limit,
        weight=spec.weight,
        users=spec.users,
        groups=spec.groups,
    )
