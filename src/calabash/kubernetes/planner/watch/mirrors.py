"""The planner's mirrors of the API server: every change becomes an event of the core, when there is one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from calabash.adapters.kube import Kind, KubeClient, Mirror, MirrorChange, WideningMirror, unusable
from calabash.adapters.kube.objects.core import NODE, POD, Node, Pod, PodSpec
from calabash.adapters.kube.objects.resources import GPU_NODE, GpuNode
from calabash.kubernetes.objects.names import PLANNED_BY
from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.state.component import COMPONENT
from calabash.kubernetes.planner.state.partition import PartNodes
from calabash.kubernetes.planner.watch.claims import KnownClaims
from calabash.kubernetes.planner.watch.facts_from_objects import (
    gpu_node_facts,
    may_concern_us,
    node_facts,
    pod_facts,
)
from calabash.kubernetes.planner.watch.pruning import GpuNodeKeeping, PodKeeping, keep_node
from calabash.kubernetes.planner.watch.rules import RuleMirrors
from calabash.kubernetes.skipped_objects import SkippedObjects

log = structlog.get_logger(__name__)


class Mirrors:
    """All that the planner watches. Of a part of the cluster these are its nodes and what is on them: devices of a node are
    told to the core from when it is open (``part``).

    Args:
        shard: the part of the cluster.
        skipped: is told of objects that are left out.
        lock: held while the core is told.
        changed: called after the core was told.
    """

    def __init__(
        self,
        client: KubeClient,
        lock: threading.RLock,
        *,
        changed: Callable[[], object],
        now_s: Callable[[], float],
        shard: Shard = ALL,
        skipped: SkippedObjects | None = None,
    ) -> None:
        self._client = client
        self.skipped = skipped or SkippedObjects(COMPONENT)
        note = self.skipped.note
        self._shard = shard
        self.part = PartNodes(shard, lock, tell=self._opened)
        self._lock = lock
        self._told = changed
        self._now_s = now_s
        self.core: Core | None = None
        self._term = self._asked_term = 0
        self.aside: dict[str, tuple[PodSpec, Mapping[str, str]]] = {}  # pods that no core is told of, as they were
        self.telling = False  # whether anybody leads here: else nothing need be read
        ours = f"spec.schedulerName={shard.scheduler}"
        self.keep_pod = PodKeeping()
        self.pods: Mirror[Pod] = Mirror(
            client,
            POD,
            on_change=self._pod,
            on_error=_lost,
            on_skipped=note,
            keep=self.keep_pod,
            field_selector=ours,
        )
        self._others: WideningMirror[Pod] | None = None
        self._nodes: Mirror[Node] = Mirror(
            client,
            NODE,
            on_change=self._node,
            on_error=_lost,
            on_skipped=note,
            keep=keep_node,
            label_selector=shard.selector,
        )
        self._gpu_nodes: Mirror[GpuNode] = Mirror(
            client,
            GPU_NODE,
            on_change=self._gpu_node,
            on_error=_lost,
            on_skipped=note,
            keep=GpuNodeKeeping(),
            label_selector=self.part.selector,
        )
        self._free: list[Mirror[GpuNode]] = []  # of a part: GpuNodes that no planner has
        if not shard.everything:
            free = Mirror(
                client,
                GPU_NODE,
                on_change=self.part.free_seen,
                on_error=_lost,
                on_skipped=note,
                keep=lambda node: GpuNode(metadata=node.metadata),
                label_selector=f"!{PLANNED_BY}",
            )
            self._free.append(free)
        self._claims = KnownClaims(lock, self._tell, self._gpu_nodes.get, now_s)
        self._rules = RuleMirrors(client, self._tell, self._claims, _lost, note)

    def watch_others(self, *, unbound: bool) -> None:
        """Before ``start``: pods of other schedulers that use devices as well; without ``unbound`` only those with a node."""
        theirs = f"spec.schedulerName!={self._shard.scheduler}" + ("" if unbound else ",spec.nodeName!=")
        self._others = self.part.pods = WideningMirror(
            self._client,
            POD,
            on_change=self._pod,
            on_error=_lost,
            on_skipped=self.skipped.note,
            keep=self.keep_pod,
            only=self._concerns_us,
            field_selector=theirs,
        )

    def start(self) -> None:
        """Watch; kinds of groups from when they are installed."""
        for mirror in self._all():
            mirror.start()
        self._rules.groups.start()

    def stop(self) -> None:
        self._rules.groups.stop()
        for mirror in self._all():
            mirror.stop()

    def pod(self, name: str, namespace: str) -> Pod | None:
        """A pod as it was last seen."""
        return next((pod for mirror in self._pods() if (pod := mirror.get(name, namespace)) is not None), None)

    def untold(self) -> list[str]:
        """Kinds of which not everything has been told yet, of pods all that was written before the last ``renew``."""
        pods = {mirror.plural for mirror in self._pods() if not mirror.renewed() or self._term != self._asked_term}
        others = {mirror.plural for mirror in self._all() if not mirror.synced()}
        return sorted({*pods, *others, *(() if self._rules.groups.synced() else ("groups and claims",))})

    def unsynced(self) -> list[str]:
        """Kinds of which no list is complete yet."""
        found = {mirror.plural for mirror in self._all() if not mirror.synced()}
        return sorted({*found, *(() if self._rules.groups.synced() else ("groups and claims",))})

    def renew(self, term: int) -> None:
        """Another may have led before this term: what it wrote to pods must be known before anything is decided. Of a part of
        the cluster the nodes that are its own must be known before that."""
        if self._asked_term != term:
            self._asked_term = term
            if not self._shard.everything:
                self._gpu_nodes.renew()
        if self._term == term or not (self._shard.everything or (self._nodes.synced() and self._gpu_nodes.renewed())):
            return
        with self._lock:
            self.part.begin()
        self._term = term
        for mirror in self._pods():
            mirror.renew()

    def begin_anew(self) -> None:
        """Have the next ``renew`` list pods again, also within the same term."""
        self._term = self._asked_term = 0

    def hurry(self) -> None:
        """The API server answers again."""
        for mirror in (*self._all(), *self._rules.groups.mirrors()):
            mirror.hurry()

    def tell_all(self, core: Core, without: Collection[str] | None = None) -> None:
        """Tell a new core everything; the caller holds the lock. An object that the core or its reader fails on is left out.

        Args:
            without: UIDs of pods that the core is not told of; None: those that were set aside.
        """
        now_s = self._now_s()
        without = self.aside if without is None else without
        self._rules.tell_all(core, self._leave_out)
        for node in self._nodes.snapshot().values():
            with self._leave_out(NODE, node):
                core.node(node_facts(node), now_s)
        for devices in self._gpu_nodes.snapshot().values():
            if self.part.has(devices.metadata.name):
                with self._leave_out(GPU_NODE, devices):
                    core.devices(gpu_node_facts(devices), now_s)
        self._claims.tell_all(core, self._leave_out)
        for pod in self._all_pods():
            if pod.metadata.uid not in without:
                with self._leave_out(POD, pod):
                    facts = pod_facts(pod, self._shard.scheduler)
                    if facts is not None:
                        core.pod(facts, now_s)

    def unbound(self) -> list[Pod]:
        """Return the pods without a node, in a fixed order."""
        return sorted((pod for pod in self._all_pods() if not pod.spec.node_name), key=lambda pod: pod.metadata.uid)

    def set_aside(self, pod: Pod, error: Exception) -> None:
        """Tell no core of a pod until the pod asks for something else, because decisions fail with it."""
        self.aside[pod.metadata.uid] = pod.spec, pod.metadata.annotations
        self.skipped.note(unusable(POD, pod, error))

    @contextmanager
    def _leave_out(self, kind: Kind[Any], obj: Any) -> Iterator[None]:
        """Report an object on which the planner fails, and go on without it."""
        try:
            yield
        except Exception as error:
            log.exception("an object is left out")
            self.skipped.note(unusable(kind, obj, error))

    def _opened(self, node: str) -> bool:
        """Tell of the devices of a node, and of what claims have of them; whether they are there."""
        devices = self._gpu_nodes.get(node)
        if devices is not None:
            facts = gpu_node_facts(devices)
            self._tell(lambda core: core.devices(facts, self._now_s()))
            self._claims.devices(node)
        return devices is not None

    def _concerns_us(self, pod: Pod) -> bool:
        on_ours = self._shard.everything or self._nodes.get(pod.spec.node_name) is not None
        return on_ours and may_concern_us(pod)

    # ---- changes --------------------------------------------------------------------------------------------------

    def _all_pods(self) -> list[Pod]:
        return [pod for mirror in self._pods() for pod in mirror.snapshot().values()]

    def _pods(self) -> list[Mirror[Pod]]:
        return [self.pods] if self._others is None else [self.pods, self._others]

    def _all(self) -> list[Mirror[Any]]:
        return [*self._pods(), self._nodes, self._gpu_nodes, *self._free, *self._rules.mirrors()]

    def _tell(self, event: Callable[[Core], object]) -> None:
        with self._lock:
            if self.core is None:
                return
            event(self.core)
        self._told()

    def _pod(self, change: MirrorChange[Pod]) -> None:
        now, before = change.after, change.before
        if now is None:
            if before is not None:
                uid = before.metadata.uid
                self.aside.pop(uid, None)
                self._tell(lambda core: core.pod_gone(uid))
            return
        if not self.telling:
            return
        if self.aside.get(now.metadata.uid) == (now.spec, now.metadata.annotations):
            return
        self.aside.pop(now.metadata.uid, None)
        facts = pod_facts(now, self._shard.scheduler)
        if facts is not None:
            self._tell(lambda core: core.pod(facts, self._now_s()))

    def _node(self, change: MirrorChange[Node]) -> None:
        now, before = change.after, change.before
        if now is not None:
            facts = node_facts(now)
            if before is None or node_facts(before) != facts:  # heartbeats change nothing here
                self._tell(lambda core: core.node(facts, self._now_s()))
            if before is None:
                with self._lock:
                    self.part.came(now.metadata.name)
        elif before is not None:
            name = before.metadata.name
            with self._lock:
                self._tell(lambda core: core.node_gone(name))
                self.part.left(name)

    def _gpu_node(self, change: MirrorChange[GpuNode]) -> None:
        now, before = change.after, change.before
        if now is None:
            if before is not None:
                name = before.metadata.name
                with self._lock:
                    self._tell(lambda core: core.devices_gone(name))
                    self.part.label_gone(name)
            return
        with self._lock:
            self.part.label_seen(now.metadata)
            if not self.part.has(now.metadata.name):
                return
            if before is not None and (before.spec, before.status) == (now.spec, now.status):
                return  # what is used of the devices is not kept: most that agents tell is only that
            self._opened(now.metadata.name)


def _lost(error: Exception) -> None:
    log.info("a watch was lost and is begun again", error=str(error))
