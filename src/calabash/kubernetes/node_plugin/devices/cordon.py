"""Whether an administrator lets pods have the node's devices: the cordon of its ``GpuNode``, as the API server last said."""

from __future__ import annotations

from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.resources import GpuNode


class Cordon:
    """Fed by a mirror of the node's own ``GpuNode``. Before that is known, it is closed."""

    def __init__(self) -> None:
        self.synced = False
        self._closed = False

    def changed(self, change: MirrorChange[GpuNode]) -> None:
        """The mirror saw a change."""
        self._closed = change.after is not None and change.after.spec.unschedulable

    def why(self) -> str:
        """Why no pod is given any of them; "" when pods are."""
        if not self.synced:
            return "whether the node is cordoned is not known yet"
        return "the node's devices are cordoned (kubectl calabash drain)" if self._closed else ""


def bare(node: GpuNode) -> GpuNode:
    """``keep`` of its mirror: the node's own words about its devices need not be held twice."""
    return GpuNode(metadata=node.metadata, spec=node.spec)
