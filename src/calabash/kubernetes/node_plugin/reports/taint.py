"""The startup taint: a node may come with ``calabash.dev/agent-not-ready``, and its agent takes it away once it serves."""

from __future__ import annotations

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import NODE
from calabash.kubernetes.objects.names import STARTUP_TAINT
from calabash.model.errors import CalabashError

AGAIN_S = 300.0  # a node that was removed and came back has it again
RETRY_S = 5.0

log = structlog.get_logger(__name__)


class StartupTaint:
    """Takes it off one node. The taint is removed by its place in the list, if it is still there, and nothing else is."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        self._registrations = -1
        self._next_s = 0.0

    def tend(self, registrations: int, now_s: float) -> None:
        """The agent serves; to be called again and again.

        Args:
            registrations: how often the kubelet has been registered with: after a new one the node may be a new one.
            now_s: monotonic time.
        """
        if registrations == self._registrations and now_s < self._next_s:
            return
        self._registrations = registrations
        try:
            self.lift()
            self._next_s = now_s + AGAIN_S
        except CalabashError as error:
            log.warning("the node's startup taint could not be taken away", error=error.message)
            self._next_s = now_s + RETRY_S

    def lift(self) -> bool:
        """Take it away; whether it was there. Raises KubeError."""
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
        log.info("the node's startup taint is taken away")
        return True
