"""Watch of a node's allocation API: the label of its Node object, or else the default of its agent."""

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
    """Poll the Node object for the allocation API. While the API server does not answer, the last value stays."""

    def __init__(self, client: KubeClient, node: str, usual: NodeDoor) -> None:
        self._client = client
        self._node = node
        self._usual = usual
        self._next_s = -math.inf
        self.door = usual

    @property
    def claims(self) -> bool:
        """Return True if devices are requested by claims."""
        return self.door is NodeDoor.CLAIMS

    def look(self, now_s: float) -> NodeDoor:
        """Return the allocation API. Asks the API server at most every ``LOOK_S`` seconds; ``now_s`` is monotonic time."""
        if now_s < self._next_s:
            return self.door
        self._next_s = now_s + LOOK_S
        try:
            node = self._client.get(NODE, self._node)
        except CalabashError as error:
            log.warning("cannot read the node's allocation API", door=self.door, error=error.message)
            return self.door
        label = node.metadata.labels.get(DOOR, "") if node is not None else ""
        if label and label not in tuple(NodeDoor):
            log.warning(
                "invalid value of the node's label calabash.dev/door",
                label=label[:64],
                hint="set it to tokens or claims",
            )
        before, self.door = self.door, door_named(label, self._usual)
        if before is not self.door:
            log.info("the node's allocation API changed", door=self.door)
        return self.door
