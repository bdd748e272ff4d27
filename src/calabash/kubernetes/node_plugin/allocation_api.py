"""Watch of a node's allocation API: how the node offers its devices, by device plug-ins or by DRA claims.

A label of the Node object selects it; without the label, the default of the agent holds.
"""

from __future__ import annotations

import math

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import NODE
from calabash.kubernetes.objects.allocation_api import AllocationApi, allocation_api_named
from calabash.kubernetes.objects.names import ALLOCATION_API
from calabash.model.errors import CalabashError

POLL_S = 10.0

log = structlog.get_logger(__name__)


class AllocationApiWatch:
    """Poll the Node object for the allocation API. While the API server does not answer, the last value holds.

    Args:
        client: client of the API server.
        node: name of the node.
        usual: the allocation API of a node without the label.
    """

    def __init__(self, client: KubeClient, node: str, usual: AllocationApi) -> None:
        self._client = client
        self._node = node
        self._usual = usual
        self._next_s = -math.inf
        self.allocation_api = usual

    @property
    def claims(self) -> bool:
        """Return True if the node offers its devices to DRA claims, not by device plug-ins."""
        return self.allocation_api is AllocationApi.CLAIMS

    def poll(self, now_s: float) -> AllocationApi:
        """Return the allocation API; read it from the API server at most every ``POLL_S`` seconds.

        Args:
            now_s: monotonic time in seconds.
        """
        if now_s < self._next_s:
            return self.allocation_api
        self._next_s = now_s + POLL_S
        try:
            node = self._client.get(NODE, self._node)
        except CalabashError as error:
            log.warning("cannot read the node's allocation API", door=self.allocation_api, error=error.message)
            return self.allocation_api
        label = node.metadata.labels.get(ALLOCATION_API, "") if node is not None else ""
        if label and label not in tuple(AllocationApi):
            log.warning(
                "invalid value of the node's label calabash.dev/door",
                label=label[:64],
                hint="set it to tokens or claims",
            )
        before, self.allocation_api = self.allocation_api, allocation_api_named(label, self._usual)
        if before is not self.allocation_api:
            log.info("the node's allocation API changed", door=self.allocation_api)
        return self.allocation_api
