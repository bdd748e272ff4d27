"""Cordon of a node's devices: new pods get none of them while the node's ``GpuNode`` has ``spec.unschedulable``."""

from __future__ import annotations

from calabash.adapters.kube import Mirror
from calabash.adapters.kube.objects.resources import GpuNode


class Cordon:
    """The cordon of a node, read from the mirror of its ``GpuNode``.

    The devices count as cordoned until the mirror has listed the object, because the state is not known before.
    """

    def __init__(self, mirror: Mirror[GpuNode], node: str) -> None:
        self._mirror = mirror
        self._node = node

    def closed_reason(self) -> str:
        """Return the reason why devices are not given to new pods; "" if they are."""
        if not self._mirror.synced():
            return "the GpuNode of this node has not been read yet"
        found = self._mirror.get(self._node)
        closed = found is not None and found.spec.unschedulable
        return "the node's devices are cordoned (kubectl calabash drain)" if closed else ""


def bare(node: GpuNode) -> GpuNode:
    """Return the part of a ``GpuNode`` that the mirror keeps: its metadata and spec, without its status."""
    return GpuNode(metadata=node.metadata, spec=node.spec)
