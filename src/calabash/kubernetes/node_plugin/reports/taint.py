"""Startup taint of a node: remove ``calabash.dev/agent-not-ready`` when the agent serves the kubelet.

Administrators can create nodes with this taint, so that no pod is scheduled to a node before its agent is ready.
"""

from __future__ import annotations

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import NODE
from calabash.kubernetes.objects.names import STARTUP_TAINT
from calabash.model.errors import CalabashError

AGAIN_S = 300.0  # interval of checks; a node that is deleted and created again has the taint again
RETRY_S = 5.0

log = structlog.get_logger(__name__)


class StartupTaint:
    """Remove the startup taint of one node.

    The JSON patch removes a taint by its index. It also tests the key at that index, so that a concurrent change of the
    taints makes the patch fail instead of removing another taint.
    """

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        self._registrations = -1
        self._next_s = 0.0

    def reconcile(self, registrations: int, now_s: float) -> None:
        """Check for the taint, and remove it, if it is time to do so.

        Called at every iteration of the agent's main loop while the agent serves the kubelet.

        Args:
            registrations: number of registrations at the kubelet so far. After a new registration the taint is checked
                at once, because the Node object may be a new one.
            now_s: monotonic time in seconds.
        """
        if registrations == self._registrations and now_s < self._next_s:
            return
        self._registrations = registrations
        try:
            self.lift()
            self._next_s = now_s + AGAIN_S
        except CalabashError as error:
            log.warning("cannot remove the node's startup taint", error=error.message)
            self._next_s = now_s + RETRY_S

    def lift(self) -> bool:
        """Remove the taint; return True if the node had it.

        Raises:
            KubeError: the API server refuses the patch or does not answer.
        """
        node = self._client.get(NODE, self._node)
        places = [i for i, taint in enumerate(node.spec.taints) if taint.key == STARTUP_TAINT] if node else []
        if not places:
            return False
        body: list[dict[str, object]] = []
        for place in reversed(places):
            path = f"/spec/taints/{place}"
            body += [
                {"op": "test", "path": f"{path}/key", "value": STARTUP_TAINT},
                {"op": "remove", "path": path},
            ]
        self._client.patch(NODE, self._node, body=body, style="json")
        log.info("removed the node's startup taint")
        return True
