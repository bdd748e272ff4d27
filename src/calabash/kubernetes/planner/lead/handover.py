"""Handover of nodes between the planners of a divided cluster.

Theory of operation. A cluster can be divided into pools of nodes, each with a planner of its own. An administrator
assigns a Node to a pool by a label. The planners see a change of this label at different times, so it alone could not
prevent that two of them plan the same node. Therefore the GpuNode has a second label, ``PLANNED_BY``, with the lease of
its planner. Only planners write it, and each write names the version that was read, so that the later of two
concurrent writes fails. A planner plans a node only while the Node is in its pool and the GpuNode has its label.

* Release: the Node has left the pool. Unbound pods that were planned on it are planned elsewhere. Once no binding and
  no plan for the node is being written any more, ``PLANNED_BY`` is removed.
* Take: a node of the pool has no planner, or a planner whose lease is not held. ``PLANNED_BY`` is written. If the node
  had another planner, the label ``TAKEN_FROM`` names that planner's lease, and the lease is checked once more: that
  planner may have begun to lead in between. It writes its lease before it lists GpuNodes, so one of the two planners
  sees the other. If its lease is still not held, ``TAKEN_FROM`` is removed; otherwise the node is given back.
* Open: the node is planned as soon as all pods bound to it have been listed after ``PLANNED_BY`` was written.

At the beginning of a term, a planner lists its GpuNodes before it lists pods. The nodes that have its label by then are
open at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.resources import GPU_NODE
from calabash.kubernetes.leader.lease import CALL_S
from calabash.kubernetes.objects.names import PLANNED_BY, TAKEN_FROM
from calabash.kubernetes.objects.shards import Shard
from calabash.model.errors import CalabashError, Reason

log = structlog.get_logger(__name__)

EVERY_S = 1.0
AGAIN_S = 600.0  # between reads of a pool node without devices; GpuNodes created later are seen at once
HELD_S = 5.0  # between checks of the lease of a pool node's other planner
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Labelled:
    """A GpuNode whose label ``PLANNED_BY`` names this planner's lease.

    Args:
        version: resource version of the GpuNode.
        taken_from: lease of the planner from which the node was taken; "" if there was none or the takeover is
            confirmed.
    """

    version: str
    taken_from: str = ""


class NodeView(Protocol):
    """The nodes that a planner has, releases or may take, as last seen. Safe for threads."""

    def in_pool(self) -> set[str]:
        """Return the nodes that an administrator has assigned to this planner's pool, as last seen."""
        ...

    def labelled(self) -> dict[str, Labelled]:
        """Return the GpuNodes that have this planner's label, as last seen, by node name."""
        ...

    def free(self) -> dict[str, str]:
        """Return the resource versions of GpuNodes without a planner's label, as last seen, by node name."""
        ...

    def opened(self) -> set[str]: ...

    def list_pods(self, nodes: set[str]) -> set[str]:
        """Begin to list the pods on these nodes. Returns the nodes of all calls so far whose pods are listed by now."""
        ...

    def open(self, node: str) -> None:
        """Permit the planner to plan pods on the node."""
        ...


class NodePlanner(Protocol):
    """The planner whose nodes are handed over."""

    def is_busy(self, node: str) -> bool:
        """Return True while a binding to the node, or a plan for it, is being written."""
        ...

    def leads(self) -> bool:
        """Return True while the planner leads; called before every write."""
        ...


class Handover:
    """Handover of this planner's nodes; see the module's description. One thread calls ``step``.

    Args:
        shard: the part of the cluster for which this planner decides.
        seen: the nodes as this planner sees them.
        planner: this planner.
        lives: given the name of a lease, returns True if a planner may hold it. Raises CalabashError.
        now_s: monotonic clock in seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        shard: Shard,
        seen: NodeView,
        *,
        planner: NodePlanner,
        lives: Callable[[str], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client.within(CALL_S)  # writes end before this planner's term does
        self._mine = shard.lease
        self._view = seen
        self._planner = planner
        self._is_held = lives
        self._now_s = now_s
        self._not_before_s: dict[str, float] = {}
        self._released: dict[str, str] = {}  # versions of nodes whose label was, or may have been, removed

    def step(self) -> None:
        """Release, take and open the nodes for which this is possible now; see the module's description.

        A failed write is tried again at the next step.
        """
        if not self._planner.leads():
            return
        wanted, labelled, free = self._view.in_pool(), self._view.labelled(), self._view.free()
        self._released = {n: v for n, v in self._released.items() if n in labelled and labelled[n].version == v}
        leaving = sorted((labelled.keys() - wanted) | self._released.keys())
        self._in_parallel(
            [(node, self._release, labelled[node]) for node in leaving if not self._planner.is_busy(node)]
        )
        self._in_parallel([(node, self._take, free[node]) for node in sorted(wanted & free.keys())])
        for node in sorted(wanted - labelled.keys() - free.keys()):
            if self._now_s() >= self._not_before_s.get(node, 0.0):
                self._attempt(node, self._take_over)
        ours = (wanted & labelled.keys()) - self._released.keys()
        for node in sorted(node for node in ours if labelled[node].taken_from):
            self._attempt(node, self._confirm_takeover, labelled[node])
        ready = {node for node in ours if not labelled[node].taken_from} - self._view.opened()
        for node in self._view.list_pods(ready) & ready if ready else ():
            self._view.open(node)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _attempt(self, node: str, call: Callable[..., object], *more: object) -> None:
        if not self._planner.leads():
            return
        try:
            call(node, *more)
        except CalabashError as error:
            if error.reason not in (Reason.CONFLICT, Reason.NOT_FOUND):
                log.warning("a node was not handed over", node=node, error=error.message)

    def _release(self, node: str, seen: Labelled) -> None:
        """Remove this planner's label from a node, or give the node back.

        The node is given back if it was taken from a planner that leads now: the label is then set to that planner's
        lease.

        ``step`` repeats the write until another version of the GpuNode, or its deletion, is seen.
        """
        back = seen.taken_from if seen.taken_from and self._is_held(seen.taken_from) else None
        self._released[node] = seen.version
        self._write(node, seen.version, back)

    def _in_parallel(self, calls: list[tuple[str, Callable[..., object], Labelled | str]]) -> None:
        """Write labels with several threads, because a cluster that was just divided has many nodes to hand over.

        Each call is a node name, the function that writes the label of this node, and the function's second argument.
        """
        if not calls:
            return
        log.info("nodes are handed over", count=len(calls), first=calls[0][0], how=calls[0][1].__name__.strip("_"))
        with ThreadPoolExecutor(min(_AT_ONCE, len(calls)), thread_name_prefix="planner-nodes") as several:
            list(several.map(lambda call: self._attempt(*call), calls))

    def _take(self, node: str, version: str) -> None:
        self._write(node, version, self._mine)

    def _take_over(self, node: str) -> None:
        """Take a node from a planner whose lease is not held any more."""
        found = self._client.get(GPU_NODE, node)
        if found is None:
            self._not_before_s[node] = self._now_s() + AGAIN_S
            return
        self._not_before_s.pop(node, None)
        labels, version = found.metadata.labels, found.metadata.resource_version
        holder, before = labels.get(PLANNED_BY, ""), labels.get(TAKEN_FROM, "")
        if holder in ("", self._mine) or self._is_held(holder):  # free and own nodes are seen by the mirrors
            self._not_before_s[node] = self._now_s() + HELD_S
            return
        if before not in ("", self._mine) and self._is_held(before):
            self._write(node, version, before)  # the planner that took it has not confirmed the takeover
            return
        self._write(node, version, self._mine, taken_from=holder)
        log.info("takes over a node of a planner that is gone", node=node, before=holder)

    def _confirm_takeover(self, node: str, seen: Labelled) -> None:
        """Give a taken node back if its former planner leads again; otherwise keep it and remove its ``TAKEN_FROM``."""
        back = self._is_held(seen.taken_from)
        self._write(node, seen.version, seen.taken_from if back else self._mine)

    def _write(self, node: str, version: str, holder: str | None, *, taken_from: str | None = None) -> None:
        labels = {PLANNED_BY: holder, TAKEN_FROM: taken_from}
        body = {"metadata": {"resourceVersion": version, "labels": labels}}
        self._client.patch(GPU_NODE, node, body=body)


class HandoverThread:
    """Thread that calls ``step`` every ``EVERY_S``, and at once after ``moved`` was set.

    Args:
        handover: the handover.
        moved: set when a node was added or removed. The thread clears it.
    """

    def __init__(self, handover: Handover, moved: threading.Event) -> None:
        self._handover = handover
        self._stopping = threading.Event()
        self._moved = moved
        self._thread = threading.Thread(target=self._run, name="planner-nodes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._moved.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._moved.clear()
            try:
                self._handover.step()
            except Exception:
                log.exception("nodes were not handed over")
                self._stopping.wait(EVERY_S)
            self._moved.wait(EVERY_S)
