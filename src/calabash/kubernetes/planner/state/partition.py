"""Nodes of a planner's part of the cluster: pool membership, labels, and which nodes are open.

A node is *open* if this planner may plan pods on it; ``lead.handover`` describes when. The sets change under the
planner's lock, together with the event that the core gets. So nothing is decided for a node that is not open any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from calabash.adapters.kube import MirrorChange, WideningMirror
from calabash.adapters.kube.objects.core import Pod
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.adapters.kube.objects.resources import GpuNode
from calabash.kubernetes.objects.names import PLANNED_BY, TAKEN_FROM
from calabash.kubernetes.objects.shards import Shard
from calabash.kubernetes.planner.lead.handover import Labelled

_SINGLE_LISTS_MAX = 64  # for more nodes at once, one list of all pods costs less


class PartitionNodes:
    """Nodes of the planner's part of the cluster; implements ``handover.NodeView``.

    Args:
        shard: the part of the cluster for which the planner decides.
        lock: the planner's lock, which guards the core.
        pods: mirror of other schedulers' pods, restricted to these nodes.
        emit_devices: passes the devices of a node to the core; returns False if they are unknown.
    """

    def __init__(
        self,
        shard: Shard,
        lock: threading.RLock,
        pods: WideningMirror[Pod],
        *,
        emit_devices: Callable[[str], bool],
    ) -> None:
        self._shard = shard
        self._lock = lock
        self._pods = pods
        self._emit_devices = emit_devices
        self._pool: set[str] = set()
        self._labelled: dict[str, Labelled] = {}
        self._free: dict[str, str] = {}
        self._open: set[str] = set()
        self._listings: dict[str, int] = {}
        self.moved = threading.Event()  # set when a node was added or removed

    @property
    def selector(self) -> str:
        """Label selector of the GpuNodes of this planner; "" selects all, if the cluster is not divided."""
        return "" if self._shard.everything else f"{PLANNED_BY}={self._shard.lease}"

    def is_open(self, node: str) -> bool:
        """Return True if the planner may plan pods on the node, so the core gets its devices."""
        return self._shard.everything or node in self._open

    # ---- what the mirrors say, under the lock ---------------------------------------------------------------------

    def node_added(self, node: str) -> None:
        """Record that a node was added to the pool."""
        self._pool.add(node)
        self.moved.set()

    def node_removed(self, node: str) -> None:
        """Record that a node has left the pool or was deleted; no pod is planned on it any more."""
        self._pool.discard(node)
        self._close(node)

    def label_changed(self, meta: ObjectMeta) -> None:
        """Record the version of a GpuNode that has this planner's label."""
        if not self._shard.everything:
            before = self._labelled.get(meta.name)
            now = Labelled(meta.resource_version, meta.labels.get(TAKEN_FROM, ""))
            self._labelled[meta.name] = now
            if before is None or before.taken_from != now.taken_from:
                self.moved.set()

    def label_removed(self, node: str) -> None:
        """Record that a GpuNode has lost this planner's label or was deleted; no pod is planned on it any more."""
        self._labelled.pop(node, None)
        self._close(node)

    def free_changed(self, change: MirrorChange[GpuNode]) -> None:
        """Record a change in the mirror of GpuNodes without a planner's label: a node was added, changed or removed."""
        found = change.after or change.before
        with self._lock:
            if change.after is not None:
                self._free[change.after.metadata.name] = change.after.metadata.resource_version
            elif found is not None:
                self._free.pop(found.metadata.name, None)
        self.moved.set()

    def begin_term(self) -> None:
        """Open the nodes of the pool that have this planner's label. The caller lists all pods after this call."""
        self._open = {node for node, one in self._labelled.items() if node in self._pool and not one.taken_from}
        self._listings.clear()

    def _close(self, node: str) -> None:
        self._open.discard(node)
        self._listings.pop(node, None)
        self.moved.set()

    # ---- what is asked --------------------------------------------------------------------------------------------

    def in_pool(self) -> set[str]:
        with self._lock:
            return set(self._pool)

    def labelled(self) -> dict[str, Labelled]:
        with self._lock:
            return dict(self._labelled)

    def free(self) -> dict[str, str]:
        with self._lock:
            return dict(self._free)

    def opened(self) -> set[str]:
        with self._lock:
            return set(self._open)

    def list_pods(self, nodes: set[str]) -> set[str]:
        """Begin to list the pods on those of these nodes for which no list was requested yet.

        Requests one list for each node, or a single list of all pods if there are more than _SINGLE_LISTS_MAX nodes.

        Returns the nodes of this and earlier calls whose pods are listed by now.
        """
        with self._lock:
            new = sorted(nodes - self._listings.keys())
            if len(new) > _SINGLE_LISTS_MAX:
                self._listings |= dict.fromkeys(new, self._pods.include(""))
            else:
                self._listings |= {name: self._pods.include(f"spec.nodeName={name}") for name in new}
            return {name for name, number in self._listings.items() if self._pods.included(number)}

    def open(self, node: str) -> None:
        with self._lock:
            if node in self._listings and self._emit_devices(node):  # else the node was removed meanwhile
                self._open.add(node)
