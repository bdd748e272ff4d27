"""Which door a node has: what its label says, else what its agent was told when it began."""

from __future__ import annotations

import math

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import NODE
from calabash.kubernetes.objects.allocation_api import NodeDoor, door_named
from calabash.kubernetes.objects.names import DOOR
from calabash.model.errors import CalabashError

LOOK_S = 10.0

log = structlog.get_logger(__name__)


class Doorway:
    """Asks the API server now and then. While it does not answer, it is as it was."""

    def __init__(self, client: KubeClient, node: str, usual: NodeDoor) -> None:
        self._client = client
        self._node = node
        self._usual = usual
        self._next_s = -math.inf
        self.door = usual

    @property
    def claims(self) -> bool:
        """Whether devices are asked for by claims."""
        return self.door is NodeDoor.CLAIMS

    def look(self, now_s: float) -> NodeDoor:
        """The door now; ``now_s``: monotonic time."""
        if now_s < self._next_s:
            return self.door
        self._next_s = now_s + LOOK_S
        try:
            node = self._client.get(NODE, self._node)
        except CalabashError as error:
            log.warning("the node's door is not known now", door=self.door, error=error.message)
            return self.door
        label = node.metadata.labels.get(DOOR, "") if node is not None else ""
        if label and label not in tuple(NodeDoor):
            log.warning("the node's label names no door", label=label[:64], hint="tokens or claims")
        before, self.door = self.door, door_named(label, self._usual)
        if before is not self.door:
            log.info("the node has another door", door=self.door)
        return self.door
