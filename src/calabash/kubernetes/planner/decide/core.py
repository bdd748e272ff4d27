"""The planner's decisions without input or output: events in, actions out.

The caller holds a lock, passes events, calls ``decide``, and carries out the actions that ``take_actions`` returns.
Time is an argument. All state of the core can be rebuilt from the API server: ``start`` builds it from pods, their
plans and the nodes. So nothing is persisted, and a planner that takes over begins like one that was restarted. The past use of
the queues is in the status of Queue objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from calabash.binder.cluster.cluster import ClusterScheduler
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.decide.allocated_claims import AllocatedClaims
from calabash.kubernetes.planner.decide.decisions import Decisions
from calabash.kubernetes.planner.decide.extender_answers import ExtenderAnswers
from calabash.kubernetes.planner.decide.nodes import Nodes
from calabash.kubernetes.planner.decide.pods import Pods, resubmit_resized_gangs, resubmit_waiting, start_ready_riders
from calabash.kubernetes.planner.decide.relocations import Relocations
from calabash.kubernetes.planner.decide.unplanned_pods import UnplannedPods
from calabash.kubernetes.planner.decide.unused_plans import REFUSED_S, UnusedPlans
from calabash.kubernetes.planner.state.budgets import BudgetFacts
from calabash.kubernetes.planner.state.facts import (
    Action,
    ClaimFacts,
    GpuNodeFacts,
    NamespaceFacts,
    NodeFacts,
    PodFacts,
    QueueFacts,
    SweepPod,
)
from calabash.kubernetes.planner.state.pod_lifecycle import SETTLED
from calabash.kubernetes.planner.state.queues import DEFAULT, KubeQueues, common_past_use
from calabash.kubernetes.planner.state.requests import SYSTEM_NAMESPACES, GroupName
from calabash.kubernetes.planner.state.store import PodStore, raise_unlisted
from calabash.model.state_machine import UnlistedTransitionError
from calabash.sched import DEFAULT_POLICY, CycleLimit, Options, PlacementPolicy

OPTIONS = Options(preempt=True, reclaim=True, reclaim_fair_share=False)
MOVES_AT_ONCE = 8
MOVE_AFTER_S = 30.0
MOVE_REST_S = 600.0
HOLD_S = 50.0  # below the 60 s after which kube-scheduler gives up on a bind


def options_with_moves(*, at_once: int, after_s: float, rest_s: float) -> Options:
    """Return the scheduler's options for the planner.

    Args:
        at_once: greatest number of moves in progress (pods evicted to make room for others); 0: no pod is moved.
        after_s: seconds that a pod must have waited before other pods are moved for it.
        rest_s: seconds after a move during which the replacement pod is not moved again.
    """
    return replace(OPTIONS, defragment_moves_max=at_once, defragment_wait_s=after_s, defragment_rest_s=rest_s)


class Core:
    """Decisions of the planner; see the module's description.

    Args:
        new_id: returns a new ID for a plan.
        options: options of the scheduler, from ``options_with_moves``.
        policy: placement policy, or its name.
        hold_s: seconds for which the binding of a gang's first member is held until the last one is ready.
        refused_s: seconds for which kube-scheduler may refuse a pod before its planned devices are released.
        shard: the part of the cluster for which the planner decides.
        system_namespaces: namespaces whose pods may have a system priority; elsewhere such a priority counts as 0.
        limit: time limit of one scheduler cycle; None: unlimited.
        levels: levels of the network, as keys of node labels, outermost first; see ``gangs.near``.
        on_unlisted: called if the table of stages lists no transition for a pod's stage and event; see ``PodStore``.
    """

    def __init__(
        self,
        *,
        new_id: Callable[[], str],
        options: Options = OPTIONS,
        policy: str | PlacementPolicy = DEFAULT_POLICY,
        hold_s: float = HOLD_S,
        refused_s: float = REFUSED_S,
        shard: Shard = ALL,
        system_namespaces: frozenset[str] = SYSTEM_NAMESPACES,
        limit: CycleLimit | None = None,
        levels: Sequence[str] = (),
        on_unlisted: Callable[[UnlistedTransitionError], None] = raise_unlisted,
    ) -> None:
        self._limit = limit
        self._levels = tuple(levels)
        self._options = options
        self._policy = policy
        self.queues = KubeQueues(shard)
        empty = ClusterScheduler([], [DEFAULT], options=options, policy=policy, levels=levels)
        self.store = PodStore(empty, new_id=new_id, hold_s=hold_s, on_unlisted=on_unlisted)
        self.pods = Pods(self.store, self.queues, system_namespaces)
        self.relocations = Relocations(self.store, self.pods.requests, at_once=options.defragment_moves_max)
        self.nodes = Nodes(self.store, self.pods, self.relocations)
        self.decisions = Decisions(self.store, self.pods, self.relocations)
        self.answers = ExtenderAnswers(self.store, self.pods, self.decisions)
        self.unplanned_pods = UnplannedPods(self.store, self.pods)
        self.unused_plans = UnusedPlans(self.store, refused_s=refused_s)
        self.allocated_claims = AllocatedClaims(self.store, self.pods, self.decisions)
        self._stale: set[str] = set()
        self._retry = False
        self._inherits: list[str] = []  # users of claims whose holder was deleted
        self._kinds = 0  # version of the device kinds for which waiting pods were submitted
        self._refused: set[str] = set()
        self._past_use: Mapping[str, tuple[float, float]] = {}

    def start(self, now_s: float) -> None:
        """Build the state of all pods and nodes. Call it once, after all existing objects were passed as events."""
        store = self.store
        nodes = self.nodes.cluster_nodes()
        store.use_scheduler(
            ClusterScheduler(
                nodes, [DEFAULT], options=self._options, policy=self._policy, limit=self._limit, levels=self._levels
            )
        )
        self.queues.apply(store)
        for facts in sorted(store.claims.pods.values(), key=lambda f: (not f.node, f.created_at_s, f.uid)):
            resolved = store.claims.resolve(facts)
            if resolved is not None and not resolved.finished:
                self.pods.pod_changed(resolved, now_s)
        store.set_started()
        self.pods.restart(list(store.entries.values()), now_s)
        for name in list(store.scheduler.nodes):
            self.nodes.recount(name, now_s)
        for entry in list(store.entries.values()):
            self.unplanned_pods.pod_changed(entry, now_s)
        self._kinds = store.scheduler.kinds.version
        past, at_s = common_past_use(self._past_use, now_s, self._options.half_life_s)
        store.scheduler.scheduler.restore_past_use(past, at_s)

    def set_past_use(self, past: Mapping[str, tuple[float, float]]) -> None:
        """Set the past use of queues from which ``start`` continues: device-seconds and the time of the count."""
        self._past_use = past

    # ---- events ---------------------------------------------------------------------------------------------------

    def pod_changed(self, facts: PodFacts, now_s: float) -> None:
        """Insert or update a pod."""
        if facts.claims and not facts.finished:
            if not self.store.started:  # the holder of a shared claim is known once all pods are known
                self.store.claims.put_pod(facts)
                return
            resolved = self.store.claims.resolve(facts)
            if resolved is None:
                return
            facts = resolved
        if facts.finished:
            refused_before = facts.uid in self._refused
            self.pod_deleted(facts.uid)
            if facts.refusal and not facts.leaving:
                self._refused.add(facts.uid)
                if not refused_before:
                    self.store.actions.add(_sweep_action(facts))
        else:
            self.pods.pod_changed(facts, now_s)
            entry = self.store.entries.get(facts.uid)
            if facts.node:
                self._stale.add(facts.node)
                if entry is not None:
                    requests = self.pods.requests
                    requests.budgets.pod_changed(self.store, entry, lambda e: requests.eviction_marks(e, now_s))
                    self.relocations.pod_changed(entry)
            if entry is not None and self.store.started:
                if facts.claims:
                    self.allocated_claims.pod_changed(entry, now_s)
                self.unplanned_pods.pod_changed(entry, now_s)

    def pod_deleted(self, uid: str) -> None:
        """Delete a pod that does not exist any more or has ended.

        While its claims are still allocated to it, the pod stays in the store and its devices are counted as in use.
        """
        if self.allocated_claims.keep_deleted(uid):
            self.relocations.pod_deleted(uid)
            return
        store = self.store
        entry = store.entries.get(uid)
        if entry is not None:
            self._stale.add(entry.node)
        self._inherits += store.claims.sharers(uid)
        store.claims.pod_deleted(uid)
        self.pods.pod_deleted(uid)
        self.relocations.pod_deleted(uid)
        self.decisions.pod_deleted(uid)
        self.pods.requests.budgets.pod_deleted(uid)
        self.unplanned_pods.pod_deleted(uid)
        self._refused.discard(uid)

    def claim_changed(self, facts: ClaimFacts, now_s: float) -> None:
        """Insert or update a claim."""
        before = self.store.claims.put(facts)
        if before != facts:
            self._claim_changed(facts, now_s, *(one.node for one in (before, facts) if one is not None and one.node))

    def claim_deleted(self, namespace: str, name: str, now_s: float) -> None:
        """Delete a claim."""
        before = self.store.claims.remove((namespace, name))
        if before is not None:
            self._claim_changed(before, now_s, before.node)

    def _claim_changed(self, claim: ClaimFacts, now_s: float, *nodes: str) -> None:
        for node in filter(None, nodes):
            self.nodes.claim_allocated_on(node)
            self._stale.add(node)
        if self.store.started:
            for pod in self.store.claims.users(claim.key):
                self.pod_changed(pod, now_s)
            for uid in self.allocated_claims.take_freed():
                self.pod_deleted(uid)

    def node_changed(self, facts: NodeFacts, now_s: float) -> None:
        """Insert or update a node."""
        self.nodes.node_changed(facts, now_s)
        self._retry = True

    def node_deleted(self, name: str) -> None:
        """Delete a node."""
        self.nodes.node_deleted(name)

    def devices_changed(self, facts: GpuNodeFacts, now_s: float) -> None:
        """Insert or update the devices that a node's agent reports."""
        self.nodes.devices_changed(facts, now_s)

    def devices_deleted(self, name: str) -> None:
        """Delete the devices of a node."""
        self.nodes.devices_deleted(name)

    def set_queues(self, queues: Iterable[QueueFacts]) -> None:
        """Replace all queues."""
        self.queues.set_queues(queues)
        if self.store.started:
            self.queues.apply(self.store, self.relocations.queues())
        self._retry = True

    def namespace_changed(self, facts: NamespaceFacts) -> None:
        """Insert or update a namespace."""
        self._retry |= self.queues.put_namespace(facts)

    def budget_changed(self, facts: BudgetFacts, *, there: bool = True) -> None:
        """Insert or update a disruption budget, or delete it if ``there`` is False."""
        if there:
            self.pods.requests.budgets.put(facts)
        else:
            self.pods.requests.budgets.remove(facts.namespace, facts.name)

    def group_changed(self, name: GroupName, needed: int | None) -> None:
        """Insert, update or delete a gang group object.

        ``needed`` is the number of its pods that must start together; None deletes the group.
        """
        self.pods.requests.set_group(name, needed)
        self._retry = True

    # ---- decisions ------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> None:
        """Run one round of decisions and add the resulting actions. Does nothing before ``start``."""
        if not self.store.started:
            return
        self.store.scheduler.scheduler.count_use(now_s)
        kinds = self.store.scheduler.kinds.version
        if self._kinds != kinds:
            self._kinds, self._retry = kinds, True
            resubmit_waiting(self.store, self.pods)
        inherits, self._inherits = self._inherits, []
        for facts in [f for uid in inherits if (f := self.store.claims.pods.get(uid)) is not None]:
            self.pod_changed(facts, now_s)
        self._rebuild(now_s)
        resubmit_resized_gangs(self.store, self.pods)
        if self._retry:
            self._retry = False
            self.pods.retry_set_aside()
        for name in self._stale:
            self.nodes.recount(name, now_s)
        self._stale.clear()
        self.pods.retry_backed_off(now_s)
        self.unused_plans.withdraw(now_s)
        self.pods.retry_deferred(now_s)
        requests = self.pods.requests
        requests.budgets.mark_changed(self.store, lambda entry: requests.eviction_marks(entry, now_s))
        self.unplanned_pods.retry(now_s)
        self.decisions.decide(now_s)
        start_ready_riders(self.pods)
        self.store.actions.add_due_reports(now_s)

    def _rebuild(self, now_s: float) -> None:
        """Add the pods of ``PodStore.take_rebuilds`` anew from their facts, as after a restart of the planner.

        A pod that is being bound, bound or evicted keeps its stage and its devices, because it may use them.
        """
        for entry in self.store.take_rebuilds():
            if entry.stage not in SETTLED:
                uid = entry.facts.uid
                self.unplanned_pods.pod_deleted(uid)
                self.pods.pod_deleted(uid)
                self.pod_changed(self.store.claims.pods.get(uid, entry.facts), now_s)

    def take_actions(self) -> list[Action]:
        """Return and remove the actions to be carried out, in order."""
        return self.store.actions.take()


def _sweep_action(pod: PodFacts) -> SweepPod:
    """Return the action for a pod that its kubelet refused at admission, and which therefore never runs.

    The action writes an event. If the pod's controller is not tied to the node and creates another pod after a
    deletion, the action also deletes the refused pod.
    """
    where = f"the kubelet of {pod.node or 'its node'} refused it for good ({pod.refusal})"
    # A DaemonSet deletes its failed pods itself, with growing delays.
    is_recreated = pod.is_recreated and not pod.recreated_on_same_node
    if is_recreated:
        what = "the pod is deleted, and its controller creates another"
    elif pod.is_recreated:
        what = "its controller creates another on the same node"
    else:
        what = "no controller creates another; hint: delete the pod and create it again"
    name = PodName(uid=pod.uid, namespace=pod.namespace, name=pod.name)
    return SweepPod(pod=name, is_recreated=is_recreated, message=f"{where}: {what}")
