"""Which nodes a planner of a part of the cluster may plan, and how a node goes from one planner to another.

Theory of operation. The label of a Node says which pool an administrator wants it in; planners hear of it at different
moments. So the GpuNode has a label of its own, written by planners alone and each time against the version that was read:
the lease of the planner that plans it. A planner plans a node only while it has seen both labels say so.

* Give: a node has left the pool. Its pods that have not begun are planned elsewhere; when no binding and no plan for it
  is being written any more, the label is taken off.
* Take: a node of the pool has no planner, or one whose lease nobody holds. The label is written. Where it was another's, a
  second label names that lease, and it is looked at once more: who began to lead in between writes its lease before it lists
  GpuNodes, so one of the two sees the other. Then the second label is taken off.
* Open: the node is planned from when all pods that are bound to it have been listed after its label was ours.

A planner that begins a term lists its GpuNodes before it lists pods; nodes that are its own by then are open.
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
AGAIN_S = 600.0  # a node of the pool that has no devices is asked for again; whoever has some from now on is seen
HELD_S = 5.0  # so often it is asked for whether who has a node of the pool lives
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Labelled:
    """A GpuNode that has our label: its version, and the lease of whom it was taken from, "" where that is settled."""

    version: str
    taken_from: str = ""


class NodesSeen(Protocol):
    """What a planner knows of its nodes. Safe for threads."""

    def in_pool(self) -> set[str]:
        """Nodes that are in the pool, as last seen."""
        ...

    def labelled(self) -> dict[str, Labelled]:
        """GpuNodes that have our label, as last seen."""
        ...

    def free(self) -> dict[str, str]:
        """GpuNodes that have nobody's label, as last seen, with their versions."""
        ...

    def opened(self) -> set[str]: ...

    def look(self, nodes: set[str]) -> set[str]:
        """Have the pods on these listed; of all that were asked for, those whose pods are known by now."""
        ...

    def open(self, node: str) -> None:
        """It may be planned."""
        ...


class Handover:
    """See the module's description; ``step`` is called by one thread.

    Args:
        busy: whether a binding to a node, or a plan for it, is being written.
        may_write: whether this planner leads; asked before every write.
        lives: whether anybody may hold a lease. Raises CalabashError.
        now_s: a clock that never jumps.
    """

    def __init__(
        self,
        client: KubeClient,
        shard: Shard,
        seen: NodesSeen,
        *,
        busy: Callable[[str], bool],
        may_write: Callable[[], bool],
        lives: Callable[[str], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client.within(CALL_S)  # what is written is written before this planner's term is over
        self._mine = shard.lease
        self._seen = seen
        self._busy = busy
        self._may_write = may_write
        self._lives = lives
        self._now_s = now_s
        self._not_before_s: dict[str, float] = {}
        self._given: dict[str, str] = {}  # versions against which a label was, or may have been, taken off

    def step(self) -> None:
        """Give, take and open what can be now. What fails is tried again at the next step."""
        if not self._may_write():
            return
        wanted, labelled, free = self._seen.in_pool(), self._seen.labelled(), self._seen.free()
        self._given = {n: v for n, v in self._given.items() if n in labelled and labelled[n].version == v}
        leaving = sorted((labelled.keys() - wanted) | self._given.keys())
        self._at_once([(node, self._give, labelled[node]) for node in leaving if not self._busy(node)])
        self._at_once([(node, self._take, free[node]) for node in sorted(wanted & free.keys())])
        for node in sorted(wanted - labelled.keys() - free.keys()):
            if self._now_s() >= self._not_before_s.get(node, 0.0):
                self._tried(node, self._take_over)
        ours = (wanted & labelled.keys()) - self._given.keys()
        for node in sorted(node for node in ours if labelled[node].taken_from):
            self._tried(node, self._look_again, labelled[node])
        ready = {node for node in ours if not labelled[node].taken_from} - self._seen.opened()
        for node in self._seen.look(ready) & ready if ready else ():
            self._seen.open(node)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _tried(self, node: str, call: Callable[..., object], *more: object) -> None:
        if not self._may_write():
            return
        try:
            call(node, *more)
        except CalabashError as error:
            if error.reason not in (Reason.CONFLICT, Reason.NOT_FOUND):
                log.warning("a node was not handed over", node=node, error=error.message)

    def _give(self, node: str, seen: Labelled) -> None:
        """Whether it was written is known when another version of it is seen, or none: until then it is tried again."""
        back = seen.taken_from if seen.taken_from and self._lives(seen.taken_from) else None
        self._given[node] = seen.version
        self._write(node, seen.version, back)

    def _at_once(self, calls: list[tuple[str, Callable[..., object], Labelled | str]]) -> None:
        """There are many where a cluster has just been divided."""
        if not calls:
            return
        log.info("nodes are handed over", count=len(calls), first=calls[0][0], how=calls[0][1].__name__.strip("_"))
        with ThreadPoolExecutor(min(_AT_ONCE, len(calls)), thread_name_prefix="planner-nodes") as several:
            list(several.map(lambda call: self._tried(*call), calls))

    def _take(self, node: str, version: str) -> None:
        self._write(node, version, self._mine)

    def _take_over(self, node: str) -> None:
        """One that may be another's, whose lease nobody holds any more."""
        found = self._client.get(GPU_NODE, node)
        if found is None:
            self._not_before_s[node] = self._now_s() + AGAIN_S
            return
        self._not_before_s.pop(node, None)
        labels, version = found.metadata.labels, found.metadata.resource_version
        holder, before = labels.get(PLANNED_BY, ""), labels.get(TAKEN_FROM, "")
        if holder in ("", self._mine) or self._lives(holder):  # that it is nobody's, or ours, is seen
            self._not_before_s[node] = self._now_s() + HELD_S
            return
        if before not in ("", self._mine) and self._lives(before):
            self._write(node, version, before)  # who took it from that one did not come to look again
            return
        self._write(node, version, self._mine, taken_from=holder)
        log.info("plans a node of a planner that is gone", node=node, before=holder)

    def _look_again(self, node: str, seen: Labelled) -> None:
        """Whoever had it may have come back while it was taken."""
        back = self._lives(seen.taken_from)
        self._write(node, seen.version, seen.taken_from if back else self._mine)

    def _write(self, node: str, version: str, holder: str | None, *, taken_from: str | None = None) -> None:
        labels = {PLANNED_BY: holder, TAKEN_FROM: taken_from}
        body = {"metadata": {"resourceVersion": version, "labels": labels}}
        self._client.patch(GPU_NODE, node, body=body)


class HandoverThread:
    """Calls ``step`` every ``EVERY_S``, and at once when ``hurry`` says that a node has come or gone."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._stopping = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-nodes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join()

    def hurry(self) -> None:
        self._due.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._due.clear()
            try:
                self._handover.step()
            except Exception:
                log.exception("nodes were not handed over")
                self._stopping.wait(EVERY_S)
            self._due.wait(EVERY_S)
