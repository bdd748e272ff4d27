"""The planner's mirrors of the API server: every change becomes an event of the core, when there is one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import structlog

from calabash.kubernetes.asked import GangSource
from calabash.kubernetes.names import SCHEDULER
from calabash.kubernetes.planner.claim_mirrors import KnownClaims
from calabash.kubernetes.planner.core import Core
from calabash.kubernetes.planner.group_mirrors import GroupMirrors
from calabash.kubernetes.planner.keeping import GpuNodeKeeping, PodKeeping, keep_node
from calabash.kubernetes.planner.reading import (
    budget_facts,
    gpu_node_facts,
    group_size,
    may_concern_us,
    namespace_facts,
    node_facts,
    pod_facts,
    queue_facts,
)
from calabash.seams.kube import KubeClient, Mirror, MirrorChange
from calabash.seams.kube.groups import MemberGroup, PodGroup
from calabash.seams.kube.objects import NAMESPACE, NODE, PDB, POD, Namespace, Node, Pod, PodDisruptionBudget
from calabash.seams.kube.resources import GPU_NODE, QUEUE, GpuNode, KubeQueue

log = structlog.get_logger(__name__)


class Mirrors:
    """All that the planner watches.

    Args:
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
    ) -> None:
        self._client = client
        self._lock = lock
        self._told = changed
        self._now_s = now_s
        self.core: Core | None = None
        self._term = 0
        self.telling = False  # whether anybody leads here: else nothing need be read
        ours = f"spec.schedulerName={SCHEDULER}"
        self._keep_pod = PodKeeping()
        self.pods: Mirror[Pod] = Mirror(
            client, POD, on_change=self._pod, on_error=_lost, keep=self._keep_pod, field_selector=ours
        )
        self._others: Mirror[Pod] | None = None
        self._nodes: Mirror[Node] = Mirror(client, NODE, on_change=self._node, on_error=_lost, keep=keep_node)
        self._gpu_nodes: Mirror[GpuNode] = Mirror(
            client, GPU_NODE, on_change=self._gpu_node, on_error=_lost, keep=GpuNodeKeeping()
        )
        self._queues: Mirror[KubeQueue] = Mirror(client, QUEUE, on_change=self._queue, on_error=_lost)
        self._namespaces: Mirror[Namespace] = Mirror(client, NAMESPACE, on_change=self._namespace, on_error=_lost)
        self._budgets: Mirror[PodDisruptionBudget] = Mirror(client, PDB, on_change=self._budget, on_error=_lost)
        self._claims = KnownClaims(lock, self._tell, self._gpu_nodes.get, now_s)
        self._groups = GroupMirrors(client, self._installed, _lost)

    def watch_others(self, *, unbound: bool) -> None:
        """Before ``start``: pods of other schedulers that use devices as well; without ``unbound`` only those with a node."""
        theirs = f"spec.schedulerName!={SCHEDULER}" + ("" if unbound else ",spec.nodeName!=")
        self._others = Mirror(
            self._client,
            POD,
            on_change=self._pod,
            on_error=_lost,
            keep=self._keep_pod,
            only=may_concern_us,
            field_selector=theirs,
        )

    def start(self) -> None:
        """Watch; kinds of groups from when they are installed."""
        for mirror in self._all():
            mirror.start()
        self._groups.start()

    def stop(self) -> None:
        self._groups.stop()
        for mirror in self._all():
            mirror.stop()

    def pod(self, name: str, namespace: str) -> Pod | None:
        """A pod as it was last seen."""
        return next((pod for mirror in self._pods() if (pod := mirror.get(name, namespace)) is not None), None)

    def untold(self) -> list[str]:
        """Kinds of which not everything has been told yet, of pods all that was written before the last ``renew``."""
        pods = {mirror.plural for mirror in self._pods() if not mirror.renewed()}
        others = {mirror.plural for mirror in self._all() if not mirror.synced()}
        return sorted({*pods, *others, *(() if self._groups.synced() else ("groups and claims",))})

    def renew(self, term: int) -> None:
        """Another may have led before this term: what it wrote to pods must be known before anything is decided."""
        if self._term != term:
            self._term = term
            for mirror in self._pods():
                mirror.renew()

    def hurry(self) -> None:
        """The API server answers again."""
        for mirror in (*self._all(), *self._groups.mirrors()):
            mirror.hurry()

    def tell_all(self, core: Core) -> None:
        """Tell a new core everything; the caller holds the lock."""
        now_s = self._now_s()
        for namespace in self._namespaces.snapshot().values():
            core.namespace(namespace_facts(namespace))
        core.set_queues([queue_facts(queue) for queue in self._queues.snapshot().values()])
        for source, group in self._groups.snapshot():
            core.group((source, group.metadata.namespace, group.metadata.name), group_size(group))
        for budget in self._budgets.snapshot().values():
            core.budget(budget_facts(budget))
        for node in self._nodes.snapshot().values():
            core.node(node_facts(node), now_s)
        for devices in self._gpu_nodes.snapshot().values():
            core.devices(gpu_node_facts(devices), now_s)
        self._claims.tell_all(core)
        for pod in [pod for mirror in self._pods() for pod in mirror.snapshot().values()]:
            facts = pod_facts(pod)
            if facts is not None:
                core.pod(facts, now_s)

    # ---- changes --------------------------------------------------------------------------------------------------

    def _pods(self) -> list[Mirror[Pod]]:
        return [self.pods] if self._others is None else [self.pods, self._others]

    def _all(self) -> list[Mirror[Any]]:
        return [
            *self._pods(),
            self._nodes,
            self._gpu_nodes,
            self._queues,
            self._namespaces,
            self._budgets,
        ]

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
                self._tell(lambda core: core.pod_gone(uid))
            return
        if not self.telling:
            return
        facts = pod_facts(now)
        if facts is not None:
            self._tell(lambda core: core.pod(facts, self._now_s()))

    def _node(self, change: MirrorChange[Node]) -> None:
        now, before = change.after, change.before
        if now is not None:
            facts = node_facts(now)
            if before is None or node_facts(before) != facts:  # heartbeats change nothing here
                self._tell(lambda core: core.node(facts, self._now_s()))
        elif before is not None:
            name = before.metadata.name
            self._tell(lambda core: core.node_gone(name))

    def _gpu_node(self, change: MirrorChange[GpuNode]) -> None:
        now, before = change.after, change.before
        if now is not None:
            if before is not None and (before.spec, before.status) == (now.spec, now.status):
                return  # what is used of the devices is not kept: most that agents tell is only that
            facts = gpu_node_facts(now)
            self._tell(lambda core: core.devices(facts, self._now_s()))
        elif before is not None:
            self._tell(lambda core: core.devices_gone(before.metadata.name))

    def _queue(self, change: MirrorChange[KubeQueue]) -> None:
        now, before = change.after, change.before
        if now is not None and before is not None and queue_facts(now) == queue_facts(before):
            return  # our own writing of its status
        facts = [queue_facts(queue) for queue in self._queues.snapshot().values()]
        self._tell(lambda core: core.set_queues(facts))

    def _namespace(self, change: MirrorChange[Namespace]) -> None:
        if change.after is not None:
            facts = namespace_facts(change.after)
            self._tell(lambda core: core.namespace(facts))

    def _budget(self, change: MirrorChange[PodDisruptionBudget]) -> None:
        budget = change.after or change.before
        if budget is None:
            return
        facts, there = budget_facts(budget), change.after is not None
        self._tell(lambda core: core.budget(facts, there=there))

    def _installed(self, source: str, change: MirrorChange[Any]) -> None:
        if source == "claims":
            self._claims.claim(change)
        elif source == "classes":
            self._claims.device_class(change)
        else:
            self._group(GangSource(source), change)

    def _group(self, source: GangSource, change: MirrorChange[PodGroup | MemberGroup]) -> None:
        group = change.after or change.before
        if group is not None:
            name = (source, group.metadata.namespace, group.metadata.name)
            needed = group_size(group) if change.after is not None else None
            self._tell(lambda core: core.group(name, needed))


def _lost(error: Exception) -> None:
    log.info("a watch was lost and is begun again", error=str(error))
