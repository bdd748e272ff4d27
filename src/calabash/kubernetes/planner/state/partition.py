"""The nodes of a planner's part of the cluster, as its core was told of them: what ``handover`` asks.

All sets change under the planner's lock, in the same step in which the core is told: whoever finds a node gone here knows
that nothing more is decided for it.
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

_LOOKED_ONE_BY_ONE = 64  # for more nodes at once it is less to list all pods again


class PartNodes:
    """See the module's description, and ``handover.NodesSeen``.

    Args:
        tell: tells the core of the devices of a node; whether they are there.
    """

    def __init__(self, shard: Shard, lock: threading.RLock, *, tell: Callable[[str], bool]) -> None:
        self._shard = shard
        self._lock = lock
        self._tell = tell
        self._pool: set[str] = set()
        self._labelled: dict[str, Labelled] = {}
        self._free: dict[str, str] = {}
        self._open: set[str] = set()
        self._looked: dict[str, int] = {}
        self.pods: WideningMirror[Pod] | None = None  # of others, which hold those of these nodes only
        self.moved: Callable[[], object] = lambda: None  # called when a node has come or gone

    @property
    def selector(self) -> str:
        """Labels of its GpuNodes."""
        return "" if self._shard.everything else f"{PLANNED_BY}={self._shard.lease}"

    def has(self, node: str) -> bool:
        """Whether the core is told of its devices."""
        return self._shard.everything or node in self._open

    # ---- what the mirrors say, under the lock ---------------------------------------------------------------------

    def came(self, node: str) -> None:
        self._pool.add(node)
        self.moved()

    def left(self, node: str) -> None:
        self._pool.discard(node)
        self._close(node)

    def label_seen(self, meta: ObjectMeta) -> None:
        """A GpuNode has our label, in this version."""
        if not self._shard.everything:
            before = self._labelled.get(meta.name)
            now = Labelled(meta.resource_version, meta.labels.get(TAKEN_FROM, ""))
            self._labelled[meta.name] = now
            if before is None or before.taken_from != now.taken_from:
                self.moved()

    def label_gone(self, node: str) -> None:
        self._labelled.pop(node, None)
        self._close(node)

    def free_seen(self, change: MirrorChange[GpuNode]) -> None:
        """A GpuNode has nobody's label, or comes to have one."""
        found = change.after or change.before
        with self._lock:
            if change.after is not None:
                self._free[change.after.metadata.name] = change.after.metadata.resource_version
            elif found is not None:
                self._free.pop(found.metadata.name, None)
        self.moved()

    def begin(self) -> None:
        """A term begins: pods are listed after this, so what is ours by now is open."""
        self._open = {node for node, one in self._labelled.items() if node in self._pool and not one.taken_from}
        self._looked.clear()

    def _close(self, node: str) -> None:
        self._open.discard(node)
        self._looked.pop(node, None)
        self.moved()

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

    def look(self, nodes: set[str]) -> set[str]:
        """Have the pods on these listed, which were left out so far: each node's by itself, or all where they are many."""
        pods = self.pods
        assert pods is not None
        with self._lock:
            new = sorted(nodes - self._looked.keys())
            if len(new) > _LOOKED_ONE_BY_ONE:
                self._looked |= dict.fromkeys(new, pods.include(""))
            else:
                self._looked |= {name: pods.include(f"spec.nodeName={name}") for name in new}
            return {name for name, number in self._looked.items() if pods.included(number)}

    def open(self, node: str) -> None:
        with self._lock:
            if node in self._looked and self._tell(node):  # else it went meanwhile
                self._open.add(node)
