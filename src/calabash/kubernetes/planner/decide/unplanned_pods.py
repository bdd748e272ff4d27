"""Plan pods that already have a node, or a few candidate nodes, but no usable plan.

A pod normally receives its plan before it is bound. Four cases reach this module without one:

| case       | how it happens                                              | devices free         | not free             |
|------------|-------------------------------------------------------------|----------------------|----------------------|
| BYPASSED   | bound by ``spec.nodeName``, or by a scheduler that does not ask | planned on its node  | waits                |
| CONFINED   | handshake ``affinity``: bound to a candidate node             | planned on its node  | evicted              |
| UNRESERVED | handshake ``affinity``: lost its devices before it was bound  | planned on candidate | waits                |
| DISPLACED  | its node's agent gave its devices to a pod unknown here     | planned on its node  | evicted after a time |

The node's agent starts no container of such a pod until the plan is written; meanwhile the pod's condition explains why it
waits. Waiting pods are tried again when devices may have been freed, that is, when the scheduler's state version changes.

In all cases these rules hold: the limits of the pod's queue, the queues that its namespace may use, and the least
isolation of its namespace. A pod is evicted for want of devices only if its controller may create the replacement pod
on another node. Pods of one controller are evicted at growing intervals, because otherwise eviction and creation would
alternate without end. A pod that may not be evicted waits.
"""

from __future__ import annotations

from enum import StrEnum

from calabash.binder.cluster.cluster import StartBundle
from calabash.binder.cluster.upkeep import free_text, start_on
from calabash.kubernetes.planner.decide.decisions import plan_of
from calabash.kubernetes.planner.decide.pods import Pods
from calabash.kubernetes.planner.state.affinity import NODES_MAX
from calabash.kubernetes.planner.state.facts import EvictPod, Nominate, PodFacts, WritePlan
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import UNBOUND, PodEvent, Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest

DISPLACED_TIMEOUT_S = 10.0  # the node's agent may report within this time that the devices are free again
RETRIES_PER_CYCLE = 64

_REPLACED = "the pod is evicted, and its controller creates another"


class UnplannedCase(StrEnum):
    """Cause of a missing plan; see the module's description."""

    BYPASSED = "bypassed"
    CONFINED = "confined"
    UNRESERVED = "unreserved"
    DISPLACED = "displaced"

    @classmethod
    def of_pod(cls, facts: PodFacts) -> UnplannedCase:
        """Return the case of a pod that has no plan in the store."""
        if not facts.node:
            return cls.UNRESERVED
        if facts.plan is not None and facts.plan.node == facts.node:
            return cls.DISPLACED
        return cls.CONFINED if facts.node in facts.candidate_nodes else cls.BYPASSED


class UnplannedPods:
    """Queue of pods that have a node, or a few candidate nodes, but no usable plan. The queue itself is ``store.unplanned``.

    Args:
        store: pods and the actions for them.
        pods: submits pods to their queues; has the eviction intervals of their controllers.
    """

    def __init__(self, store: PodStore, pods: Pods) -> None:
        self._store = store
        self._pods = pods
        self._requests = pods.requests
        self._version = -1  # of the scheduler's state at the last retry
        self._writing: dict[str, str] = {}  # ID of the plan that is being written, by pod
        self._refused_at_s: dict[str, float] = {}
        self._displaced_at_s: dict[str, tuple[float, str]] = {}

    def pod_changed(self, entry: PodEntry, now_s: float) -> None:
        """Add the pod to the queue, remove it, or have its existing plan written, according to its current state."""
        facts, uid = entry.facts, entry.facts.uid
        replaced_elsewhere = facts.owner and not facts.recreated_on_same_node
        if facts.refused and facts.candidate_nodes and replaced_elsewhere and not (facts.node or facts.leaving):
            self._refused_at_s.setdefault(uid, now_s)
        else:
            self._refused_at_s.pop(uid, None)
        if facts.leaving or entry.bundle is None or facts.gated:
            self._store.unplanned.remove(uid)
        elif facts.node:
            self._bound_pod_changed(entry)
        elif facts.candidate_nodes and entry.stage in UNBOUND and entry.node not in facts.candidate_nodes:
            self._pods.wait_again(entry)

    def pod_deleted(self, uid: str) -> None:
        """Delete all state kept for the pod."""
        self._store.unplanned.remove(uid)
        self._writing.pop(uid, None)
        self._refused_at_s.pop(uid, None)
        self._displaced_at_s.pop(uid, None)

    def retry(self, now_s: float) -> None:
        """Evict pods that have waited longer than their time limit, and try to plan the others.

        Tries no more than RETRIES_PER_CYCLE pods, the least recently tried first. Tries none if no pod was added and the
        scheduler's state has not changed since the last call.
        """
        self._evict_refused_pods(now_s)
        self._evict_displaced_pods(now_s)
        store = self._store
        version = store.scheduler.scheduler.state.version
        if not store.unplanned or (version == self._version and not store.unplanned.has_new):
            return
        for uid in store.unplanned.take_round(RETRIES_PER_CYCLE):
            entry = store.entries.get(uid)
            if entry is None or entry.bundle is None or (not entry.facts.node and entry.stage in UNBOUND):
                store.unplanned.remove(uid)
            elif entry.stage is Stage.EVICTED:
                continue
            elif entry.facts.node:
                self._plan_on_bound_node(entry, now_s)
            elif entry.stage is Stage.ASIDE:  # not while its binding is written and not seen
                self._plan_on_candidate_nodes(entry, now_s)
        self._version = store.scheduler.scheduler.state.version

    # ---- bound pods -----------------------------------------------------------------------------------------------

    def _bound_pod_changed(self, entry: PodEntry) -> None:
        """Write the plan that the store has for the pod's node; add the pod to the queue if there is none."""
        store, facts = self._store, entry.facts
        if entry.stage is not Stage.BOUND:
            return
        planned = facts.plan is not None and facts.plan.node == facts.node
        if entry.plan is not None and entry.plan.node == facts.node and store.scheduler.holds(entry.id):
            if not planned:
                self._write_plan(entry)
        elif not planned:
            store.unplanned.put(facts.uid)

    def _plan_on_bound_node(self, entry: PodEntry, now_s: float) -> None:
        """Reserve devices on the node to which the pod is bound and write the plan; else evict the pod or explain its wait."""
        store, facts = self._store, entry.facts
        start: StartBundle | None = None
        over_limit = ""
        try:
            start = start_on(
                store.scheduler, self._requests.bundle_request(entry, now_s), [facts.node], now_s, bound=True
            )
        except CalabashError as error:
            if error.reason is not Reason.QUEUE_OVER_LIMIT:
                hint = f"; hint: {error.hint}" if error.hint else ""
                store.actions.set_reason(entry, error.reason, f"{error.message}{hint}")
                return
            over_limit = error.message
        if start is not None:
            store.unplanned.remove(facts.uid)
            self._displaced_at_s.pop(facts.uid, None)
            store.set_plan(entry, plan_of(entry, start, store.new_id()))
            self._write_plan(entry)
            store.actions.set_reason(entry, None, f"planned on node {facts.node}, to which the pod is bound")
            return
        why = over_limit or f"{free_text(store.scheduler, facts.node)}; needs {_amounts_text(entry)}"
        without_plan = f"pod is bound to node {facts.node} without a plan: {why}"
        if not over_limit and facts.node in facts.candidate_nodes and self._may_evict(entry, now_s):
            store.unplanned.remove(facts.uid)
            self._evict(entry, without_plan, now_s)
        elif not over_limit and UnplannedCase.of_pod(facts) is UnplannedCase.DISPLACED:
            text = f"planned devices on node {facts.node} are used by a pod that the planner did not place; {why}"
            since_s, _ = self._displaced_at_s.get(facts.uid, (now_s, ""))
            self._displaced_at_s[facts.uid] = since_s, text
            store.actions.set_reason(entry, Reason.NO_CAPACITY, f"{text}; hint: starts when devices are freed")
        else:
            hint = "starts when devices are freed; to let the planner choose a node, recreate the pod without spec.nodeName"
            reason = Reason.QUEUE_OVER_LIMIT if over_limit else Reason.NO_CAPACITY
            store.actions.set_reason(entry, reason, f"{without_plan}; hint: {hint}")

    def _evict_displaced_pods(self, now_s: float) -> None:
        """Evict displaced pods that got no devices on their node within DISPLACED_TIMEOUT_S."""
        for uid, (since_s, text) in list(self._displaced_at_s.items()):
            entry = self._store.entries.get(uid)
            if entry is None or uid not in self._store.unplanned:
                del self._displaced_at_s[uid]
            elif (
                entry.stage is Stage.BOUND and now_s >= since_s + DISPLACED_TIMEOUT_S and self._may_evict(entry, now_s)
            ):
                self.pod_deleted(uid)
                self._evict(entry, text, now_s)

    def _may_evict(self, entry: PodEntry, now_s: float) -> bool:
        """Return True if the pod's controller may recreate it on another node, and its eviction interval is over."""
        facts = entry.facts
        may_evict = self._requests.node_backoff.may_evict
        return facts.is_recreated and not facts.recreated_on_same_node and may_evict(facts.owner or facts.uid, now_s)

    def _evict(self, entry: PodEntry, why: str, now_s: float) -> None:
        """Evict a pod for want of devices, and lengthen the interval to the next such eviction of its controller."""
        self._requests.node_backoff.add_eviction(entry.facts.owner or entry.facts.uid, now_s)
        self._store.evict(entry, self._eviction(entry, f"{why}; {_REPLACED}"))

    def _eviction(self, entry: PodEntry, text: str) -> EvictPod:
        grace_s = self._requests.eviction_grace_s(entry)
        return EvictPod(pod=entry.pod, reason=Reason.NO_CAPACITY, message=text, grace_max_s=grace_s)

    def _write_plan(self, entry: PodEntry) -> None:
        """Add the action that writes the pod's plan, once for each plan."""
        assert entry.plan is not None
        if self._writing.get(entry.facts.uid) != entry.plan.id:
            self._writing[entry.facts.uid] = entry.plan.id
            self._store.actions.add(WritePlan(pod=entry.pod, plan=entry.plan))

    # ---- pods with candidate nodes --------------------------------------------------------------------------------

    def _evict_refused_pods(self, now_s: float) -> None:
        """Evict pods that kube-scheduler refused on all candidate nodes; the replacement pod is planned on other nodes."""
        store, node_backoff = self._store, self._requests.node_backoff
        for uid, since_s in list(self._refused_at_s.items()):
            entry = store.entries.get(uid)
            if (
                entry is None
                or entry.stage is Stage.EVICTED
                or now_s < since_s + node_backoff.patience_s(entry.facts.owner)
            ):
                continue
            facts = entry.facts
            self.pod_deleted(uid)
            node_backoff.add_refusal(facts.owner, facts.candidate_nodes, now_s)
            store.scheduler.finished(entry.id)
            store.set_plan(entry, None)
            nodes = ", ".join(facts.candidate_nodes)
            text = (
                f"kube-scheduler found no room on the candidate nodes {nodes}; {_REPLACED}, which is planned elsewhere"
            )
            store.evict(entry, self._eviction(entry, text))

    def _plan_on_candidate_nodes(self, entry: PodEntry, now_s: float) -> None:
        """Reserve devices on one of the pod's candidate nodes, the nominated node first; else explain the pod's wait."""
        store, facts = self._store, entry.facts
        nominated = [name for name in (facts.nominated,) if name in facts.candidate_nodes]
        start: StartBundle | None = None
        try:
            request = self._requests.bundle_request(entry, now_s)
            for nodes in (nominated, facts.candidate_nodes):
                start = start or start_on(store.scheduler, request, nodes, now_s)
        except CalabashError as error:
            store.actions.set_reason(entry, error.reason, error.message)
            return
        if start is None:
            names = ", ".join(facts.candidate_nodes[:NODES_MAX])
            text = f"none of the candidate nodes {names} has the devices free; needs {_amounts_text(entry)}"
            store.actions.set_reason(entry, Reason.NO_CAPACITY, text)
            return
        store.unplanned.remove(facts.uid)
        plan = plan_of(entry, start, store.new_id())
        store.set_plan(entry, plan)
        store.advance(entry, PodEvent.REASSIGNED)
        if facts.nominated != plan.node:
            store.actions.add(Nominate(pod=entry.pod, node=plan.node))


def _amounts_text(entry: PodEntry) -> str:
    """Return the amounts that the pod's containers request, each different amount once."""
    assert entry.bundle is not None
    requests = [part.request for part in entry.bundle.parts]
    return " and ".join(dict.fromkeys(_amount_text(request) for request in requests))


def _amount_text(request: GpuRequest) -> str:
    devices = "device" if request.count == 1 else "devices"
    if request.memory_mib is None and request.core_percent == 100:
        return f"{request.count} whole {devices}"
    memory = f"{request.memory_mib} MiB and " if request.memory_mib is not None else ""
    best_effort = request.policy is ComputePolicy.BEST_EFFORT
    compute = "best-effort compute" if best_effort else f"{request.core_percent} %"
    return f"{memory}{compute} of {request.count} {devices}"
