"""Devices taken out of service and put back, as an operator asks here: wishes in the object of their node."""

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
    """Every method raises CalabashError: NOT_FOUND for a device that is none, else what the API server says."""

    def __init__(self, client: KubeClient, state: ClusterState, cluster: ClusterFace) -> None:
        self._client = client
        self._state = state
        self._cluster = cluster

    def drain(self, name: str, *, reason: str, evict: bool) -> None:
        """Nothing new is placed on it. Raises UNSUPPORTED for ending what runs there."""
        if evict:
            raise CalabashError(
                "pods are not asked to leave a device from here",
                reason=Reason.UNSUPPORTED,
                hint="drain it without, or use `kubectl calabash device drain`, which waits for disruption budgets",
            )
        self._want(name, {"drained": True, "reason": reason}, drained=True)

    def undrain(self, name: str) -> None:
        """It is to work again, whatever took it out; its agent tries it first."""
        order = {"id": secrets.token_hex(8), "what": "undrain"}
        self._want(name, {"drained": None, "reason": None, "order": order}, drained=False)

    def _want(self, name: str, care: Mapping[str, Any], *, drained: bool) -> None:
        one = self._cluster.numbered(name)
        uuid, node = one.device.uuid, one.node.metadata.name
        self._client.patch(GPU_NODE, node, body={"spec": {"devices": {uuid: care}}})

        def seen() -> bool:
            there = self._state.node(node)
            known = there.spec.devices.get(uuid) if there is not None else None
            return there is None or (known is not None and known.drained) is drained

        self._state.wait_until(seen)
