"""Cordon of a node's devices: new pods get none of them while the node's ``GpuNode`` has ``spec.unschedulable``."""

from __future__ import annotations

from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.resources import GpuNode


class Cordon:
    """The cordon of the node, updated by a mirror of its ``GpuNode``.

    The devices count as cordoned until ``report_synced`` reports that the mirror has received the object, because the
    state is not known before.
    """

    def __init__(self) -> None:
        self._synced = False
        self._closed = False

    def report_synced(self, synced: bool) -> None:
        """Record whether the mirror has received the ``GpuNode``."""
        self._synced = synced

    def changed(self, change: MirrorChange[GpuNode]) -> None:
        """Update the cordon after a change of the ``GpuNode``. The mirror calls this method."""
        self._closed = change.after is not None and change.after.spec.unschedulable

    def closed_reason(self) -> str:
        """Return the reason why devices are not given to new pods; "" if they are."""
        if not self._synced:
            return "the GpuNode of this node has not been read yet"
        return "the node's devices are cordoned (kubectl calabash drain)" if self._closed else ""


def bare(node: GpuNode) -> GpuNode:
    """Return the part of a ``GpuNode`` that the mirror keeps: its metadata and spec, without its status."""
    return GpuNode(metadata=node.metadata, spec=node.spec)
