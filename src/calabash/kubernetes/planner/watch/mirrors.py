"""Mirrors of the API server for the planner: convert every change to an event of the core.

While another planner leads there is no core. The mirrors are then kept up to date and emit no events.
"""

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
from calabash.kubernetes.planner.state.partition import PartitionNodes
from calabash.kubernetes.planner.watch.claims import ClaimEvents
from calabash.kubernetes.planner.watch.facts_from_objects import (
    gpu_node_facts,
    may_concern_us,
    node_facts,
    pod_facts,
)
from calabash.kubernetes.planner.watch.pruning import GpuNodePruner, PodPruner, keep_node
from calabash.kubernetes.planner.watch.rules import RuleMirrors
from calabash.kubernetes.skipped_objects import SkippedObjects

log = structlog.get_logger(__name__)


class Mirrors:
    """All objects that the planner watches.

    In a divided cluster, a planner watches the nodes of its part and the pods on them. The core gets the devices of a
    node once the node is open (``state.partition``).

    Args:
        lock: guards the core; held while the core gets an event.
        changed: called after each event that the core got.
        now_s: clock of the planner in seconds.
        shard: the part of the cluster for which the planner decides.
        skipped: collects objects that cannot be read and are left out.
        unbound: True to watch pods of other schedulers that may use devices also before they are bound.
    """

    def __init__(
        self,
        client: KubeClient,
        lock: threading.RLock,
        *,
        changed: Callable[[], object],
        now_s: Callable[[], float],
        shard: Shard = ALL,
        skipped: SkippedObjects,
        unbound: bool = False,
    ) -> None:
        self._skipped = skipped
        self._shard = shard
        self._lock = lock
        self._on_change = changed
        self._now_s = now_s
        self._core: Core | None = None
        self._term = self._asked_term = 0
        self.set_aside_pods: dict[
            str, tuple[PodSpec, Mapping[str, str]]
        ] = {}  # pods kept from the core: spec, annotations
        self._is_leading = False  # if not, pods need not be converted
        ours = f"spec.schedulerName={shard.scheduler}"
        self.keep_pod = PodPruner()
        self.pods: Mirror[Pod] = Mirror(
            client,
            POD,
            on_change=self._pod_changed,
            observer=skipped,
            keep=self.keep_pod,
            field_selector=ours,
        )
        self._others: WideningMirror[Pod] = WideningMirror(
            client,
            POD,
            on_change=self._pod_changed,
            observer=skipped,
            keep=lambda pod: self.keep_pod(pod) if self._is_relevant(pod) else None,
            field_selector=f"spec.schedulerName!={shard.scheduler}" + ("" if unbound else ",spec.nodeName!="),
        )
        self.partition = PartitionNodes(shard, lock, self._others, emit_devices=self._emit_devices)
        self._nodes: Mirror[Node] = Mirror(
            client,
            NODE,
            on_change=self._node_changed,
            observer=skipped,
            keep=keep_node,
            label_selector=shard.selector,
        )
        self._gpu_nodes: Mirror[GpuNode] = Mirror(
            client,
            GPU_NODE,
            on_change=self._gpu_node_changed,
            observer=skipped,
            keep=GpuNodePruner(),
            label_selector=self.partition.selector,
        )
        self._free: list[Mirror[GpuNode]] = []  # GpuNodes without a planner's label
        if not shard.everything:
            free = Mirror(
                client,
                GPU_NODE,
                on_change=self.partition.free_changed,
                observer=skipped,
                keep=lambda node: GpuNode(metadata=node.metadata),
                label_selector=f"!{PLANNED_BY}",
            )
            self._free.append(free)
        self._claims = ClaimEvents(lock, self._emit, self._gpu_nodes, now_s)
        self._rules = RuleMirrors(client, self._emit, self._claims, skipped)

    def start(self) -> None:
        """Start all watches. Optional kinds are watched once they are installed."""
        for mirror in self._all_mirrors():
            mirror.start()
        self._rules.groups.start()

    def stop(self) -> None:
        """Stop all watches."""
        self._rules.groups.stop()
        for mirror in self._all_mirrors():
            mirror.stop()

    def get_pod(self, name: str, namespace: str) -> Pod | None:
        """Return the pod as last seen; None if it is unknown."""
        return next((pod for mirror in self._pod_mirrors() if (pod := mirror.get(name, namespace)) is not None), None)

    def incomplete_kinds(self) -> list[str]:
        """Return the kinds of objects of which the mirrors do not know everything that a new core needs.

        Pods are among them until the lists that ``renew`` requested are complete.
        """
        pods = {
            mirror.plural for mirror in self._pod_mirrors() if not mirror.renewed() or self._term != self._asked_term
        }
        others = {mirror.plural for mirror in self._all_mirrors() if not mirror.synced()}
        return sorted({*pods, *others, *(() if self._rules.groups.synced() else ("groups and claims",))})

    def unsynced(self) -> list[str]:
        """Return the kinds of objects of which no complete list has been read from the API server yet."""
        found = {mirror.plural for mirror in self._all_mirrors() if not mirror.synced()}
        return sorted({*found, *(() if self._rules.groups.synced() else ("groups and claims",))})

    def renew(self, term: int) -> None:
        """List pods again at the beginning of a term, because the previous leader may have written to them just before.

        In a divided cluster, the planner first lists its nodes again; the caller repeats the call until this is done.
        Does nothing if the pods were listed for this term already.
        """
        if self._asked_term != term:
            self._asked_term = term
            if not self._shard.everything:
                self._gpu_nodes.renew()
        if self._term == term or not (self._shard.everything or (self._nodes.synced() and self._gpu_nodes.renewed())):
            return
        with self._lock:
            self.partition.begin_term()
        self._term = term
        for mirror in self._pod_mirrors():
            mirror.renew()

    def require_relist(self) -> None:
        """Make the next ``renew`` list pods again, even within the same term."""
        self._term = self._asked_term = 0

    def retry_now(self) -> None:
        """End the pauses of all watches, because the API server answers again."""
        for mirror in (*self._all_mirrors(), *self._rules.groups.mirrors()):
            mirror.hurry()

    @property
    def core(self) -> Core | None:
        """The core that gets the events; None while another planner leads."""
        return self._core

    def begin_term(self) -> None:
        """Convert the changes of pods from now on, because a core is about to be built."""
        self._is_leading = True

    def attach(self, core: Core) -> None:
        """Pass all further changes to a core that has all objects. The caller holds the lock."""
        self._core = core

    def end_term(self) -> None:
        """Pass no more changes to the core. The caller holds the lock."""
        self._core, self._is_leading = None, False

    def emit_all(self, core: Core, without: Collection[str] | None = None) -> None:
        """Give a new core all objects, except those on which the core or the conversion fails.

        The caller holds the lock.

        Args:
            without: UIDs of pods to leave out; None: the pods in ``set_aside_pods``.
        """
        now_s = self._now_s()
        without = self.set_aside_pods if without is None else without
        self._rules.emit_all(core, self._leave_out)
        for node in self._nodes.snapshot().values():
            with self._leave_out(NODE, node):
                core.node_changed(node_facts(node), now_s)
        for devices in self._gpu_nodes.snapshot().values():
            if self.partition.is_open(devices.metadata.name):
                with self._leave_out(GPU_NODE, devices):
                    core.devices_changed(gpu_node_facts(devices), now_s)
        self._claims.emit_all(core, self._leave_out)
        for pod in self._all_pods():
            if pod.metadata.uid not in without:
                with self._leave_out(POD, pod):
                    facts = pod_facts(pod, self._shard.scheduler)
                    if facts is not None:
                        core.pod_changed(facts, now_s)

    def unbound_pods(self) -> list[Pod]:
        """Return the pods without a node, in the order of their UIDs."""
        return sorted((pod for pod in self._all_pods() if not pod.spec.node_name), key=lambda pod: pod.metadata.uid)

    def set_aside(self, pod: Pod, error: Exception) -> None:
        """Pass no events of this pod to the core until its spec or annotations change, because decisions fail on it."""
        self.set_aside_pods[pod.metadata.uid] = pod.spec, pod.metadata.annotations
        self._skipped.object_skipped(unusable(POD, pod, error))

    @contextmanager
    def _leave_out(self, kind: Kind[Any], obj: Any) -> Iterator[None]:
        """Report an object on which the enclosed block fails, and continue without it."""
        try:
            yield
        except Exception as error:
            log.exception("an object is left out")
            self._skipped.object_skipped(unusable(kind, obj, error))

    def _emit_devices(self, node: str) -> bool:
        """Pass the devices of a node and the claims on it to the core. Returns False if the devices are unknown."""
        devices = self._gpu_nodes.get(node)
        if devices is not None:
            facts = gpu_node_facts(devices)
            self._emit(lambda core: core.devices_changed(facts, self._now_s()))
            self._claims.devices_changed(node)
        return devices is not None

    def _is_relevant(self, pod: Pod) -> bool:
        on_ours = self._shard.everything or self._nodes.get(pod.spec.node_name) is not None
        return on_ours and may_concern_us(pod)

    # ---- changes --------------------------------------------------------------------------------------------------

    def _all_pods(self) -> list[Pod]:
        return [pod for mirror in self._pod_mirrors() for pod in mirror.snapshot().values()]

    def _pod_mirrors(self) -> list[Mirror[Pod]]:
        return [self.pods, self._others]

    def _all_mirrors(self) -> list[Mirror[Any]]:
        return [*self._pod_mirrors(), self._nodes, self._gpu_nodes, *self._free, *self._rules.mirrors()]

    def _emit(self, event: Callable[[Core], object]) -> None:
        with self._lock:
            if self._core is None:
                return
            event(self._core)
        self._on_change()

    def _pod_changed(self, change: MirrorChange[Pod]) -> None:
        now, before = change.after, change.before
        if now is None:
            if before is not None:
                uid = before.metadata.uid
                self.set_aside_pods.pop(uid, None)
                self._emit(lambda core: core.pod_deleted(uid))
            return
        if not self._is_leading:
            return
        if self.set_aside_pods.get(now.metadata.uid) == (now.spec, now.metadata.annotations):
            return
        self.set_aside_pods.pop(now.metadata.uid, None)
        facts = pod_facts(now, self._shard.scheduler)
        if facts is not None:
            self._emit(lambda core: core.pod_changed(facts, self._now_s()))

    def _node_changed(self, change: MirrorChange[Node]) -> None:
        now, before = change.after, change.before
        if now is not None:
            facts = node_facts(now)
            if before is None or node_facts(before) != facts:  # else it was a heartbeat
                self._emit(lambda core: core.node_changed(facts, self._now_s()))
            if before is None:
                with self._lock:
                    self.partition.node_added(now.metadata.name)
        elif before is not None:
            name = before.metadata.name
            with self._lock:
                self._emit(lambda core: core.node_deleted(name))
                self.partition.node_removed(name)

    def _gpu_node_changed(self, change: MirrorChange[GpuNode]) -> None:
        now, before = change.after, change.before
        if now is None:
            if before is not None:
                name = before.metadata.name
                with self._lock:
                    self._emit(lambda core: core.devices_deleted(name))
                    self.partition.label_removed(name)
            return
        with self._lock:
            self.partition.label_changed(now.metadata)
            if not self.partition.is_open(now.metadata.name):
                return
            if before is not None and (before.spec, before.status) == (now.spec, now.status):
                return  # only the use of the devices has changed, which is pruned
            self._emit_devices(now.metadata.name)
