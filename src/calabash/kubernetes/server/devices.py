"""Drain and undrain of single devices.

The server writes the order into the spec of the node's ``GpuNode`` object. The node agent carries it out.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.server.cluster import ClusterFace
from calabash.kubernetes.server.state import ClusterState
from calabash.model.errors import CalabashError, Reason


class DeviceOrders:
    """Drain and undrain devices.

    Methods return when the server's mirror shows the order. They raise CalabashError: NOT_FOUND if there is no such
    device, or an error of the API server.

    Args:
        client: client of the API server.
        state: the server's mirrors.
        cluster: finds a device by its number or UUID.
    """

    def __init__(self, client: KubeClient, state: ClusterState, cluster: ClusterFace) -> None:
        self._client = client
        self._state = state
        self._cluster = cluster

    def drain(self, name: str, *, reason: str, evict: bool) -> None:
        """Drain a device, so that no further pod is placed on it.

        Args:
            name: number or UUID of the device.
            reason: text that is shown to users.
            evict: must be False: this server does not evict the pods that use the device.

        Raises:
            CalabashError: UNSUPPORTED if ``evict`` is True.
        """
        if evict:
            raise CalabashError(
                "pods cannot be evicted from a device by this server",
                reason=Reason.UNSUPPORTED,
                hint="drain it without eviction, or use `kubectl calabash device drain`, which waits for disruption budgets",
            )
        self._want(name, {"drained": True, "reason": reason}, drained=True)

    def undrain(self, name: str) -> None:
        """Order the agent to test a device and put it back into service, whatever the cause of its drain."""
        order = {"id": secrets.token_hex(8), "what": "undrain"}
        self._want(name, {"drained": None, "reason": None, "order": order}, drained=False)

    def _want(self, name: str, wanted: Mapping[str, Any], *, drained: bool) -> None:
        one = self._cluster.numbered(name)
        uuid, node = one.device.uuid, one.node.metadata.name
        self._client.patch(GPU_NODE, node, body={"spec": {"devices": {uuid: wanted}}})

        def seen() -> bool:
            there = self._state.node(node)
            known = there.spec.devices.get(uuid) if there is not None else None
            return there is None or (known is not None and known.drained) is drained

        self._state.wait_until(seen)
