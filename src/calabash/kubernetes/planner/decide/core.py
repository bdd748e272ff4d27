"""The planner without the world around it: events in, actions out.

Whoever calls holds a lock, tells what happened, calls ``decide`` and carries out ``take_actions``. Time is an argument.
Nothing is kept that the API server does not know as well: ``start`` builds all of it from pods, their plans and the nodes,
so a planner that died and one that takes over are the same case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from calabash.binder.cluster.cluster import ClusterScheduler
from calabash.kubernetes.objects.shards import ALL, Shard
from calabash.kubernetes.planner.decide.allocated_claims import ClaimPlaces
from calabash.kubernetes.planner.decide.cleanup import swept
from calabash.kubernetes.planner.decide.decisions import Decisions
from calabash.kubernetes.planner.decide.extender_answers import Answers
from calabash.kubernetes.planner.decide.nodes import Fleet
from calabash.kubernetes.planner.decide.pods import Pods, submit_anew, submit_resized
from calabash.kubernetes.planner.decide.relocations import Heirs
from calabash.kubernetes.planner.decide.unplanned_pods import LatePlans
from calabash.kubernetes.planner.decide.unused_plans import REFUSED_S, UnusedPlans
from calabash.kubernetes.planner.state.budgets import BudgetSeen
from calabash.kubernetes.planner.state.facts import (
    Action,
    ClaimSeen,
    GpuNodeSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    QueueSeen,
)
from calabash.kubernetes.planner.state.queues import DEFAULT, KubeQueues
from calabash.kubernetes.planner.state.requests import SYSTEM_NAMESPACES, GroupName
from calabash.kubernetes.planner.state.store import Book
from calabash.sched import DEFAULT_POLICY, CycleLimit, Options, PlacementPolicy

OPTIONS = Options(preempt=True, reclaim=True, reclaim_fair_share=False)
MOVES_AT_ONCE = 8
MOVE_AFTER_S = 30.0
MOVE_REST_S = 600.0
HOLD_S = 50.0  # below the 60 s after which kube-scheduler gives up on a bind


def options_with_moves(*, at_once: int, after_s: float, rest_s: float) -> Options:
    """How the planner decides.

    Args:
        at_once: pods that may be on the move at a time; 0: nobody is moved.
        after_s: how long a pod waits before others are moved for it.
        rest_s: how long nobody is moved after it has come.
    """
    return replace(OPTIONS, defragment_moves_max=at_once, defragment_wait_s=after_s, defragment_rest_s=rest_s)


class Core:
    """See the module's description.

    Args:
        new_id: makes the id of a plan.
        hold_s: how long the binding of a gang's first member waits for the last.
        refused_s: how long kube-scheduler may refuse a pod that holds planned devices.
        shard: the part of the cluster whose queues these are.
        system_namespaces: where the priorities of the system count.
        limit: how long one cycle of the scheduler may take; None: as long as it needs.
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
    ) -> None:
        self._limit = limit
        self._options = options
        self._policy = policy
        self.queues = KubeQueues(shard)
        empty = ClusterScheduler([], [DEFAULT], options=options, policy=policy)
        self.book = Book(empty, new_id=new_id, hold_s=hold_s)
        self.pods = Pods(self.book, self.queues, system_namespaces)
        self.heirs = Heirs(self.book, self.pods.wishes, at_once=options.defragment_moves_max)
        self.fleet = Fleet(self.book, self.pods, self.heirs)
        self.decisions = Decisions(self.book, self.pods, self.heirs)
        self.answers = Answers(self.book, self.decisions)
        self.late = LatePlans(self.book, self.pods.wishes)
        self.unused = UnusedPlans(self.book, refused_s=refused_s)
        self.places = ClaimPlaces(self.book, self.pods, self.decisions)
        self._stale: set[str] = set()
        self._retry = False
        self._inherits: list[str] = []  # pods that use claims whose holder is gone
        self._kinds = 0  # of devices, as those who wait know them
        self._refused: set[str] = set()

    def start(self, now_s: float) -> None:
        """All that there is has been told: take it over."""
        book = self.book
        book.scheduler = ClusterScheduler(
            self.fleet.nodes(), [DEFAULT], options=self._options, policy=self._policy, limit=self._limit
        )
        self.queues.apply(book)
        for facts in sorted(book.claims.pods.values(), key=lambda f: (not f.node, f.created_at_s, f.uid)):
            resolved = book.claims.resolved(facts)
            if resolved is not None and not resolved.finished:
                self.pods.see(resolved, now_s)
        book.started = True
        self.pods.restart(list(book.entries.values()), now_s)
        for name in list(book.scheduler.nodes):
            self.fleet.recount(name, now_s)
        for entry in list(book.entries.values()):
            self.late.look(entry, now_s)
        self._kinds = book.scheduler.kinds.version

    # ---- events ---------------------------------------------------------------------------------------------------

    def pod(self, facts: PodSeen, now_s: float) -> None:
        """A pod is there, or is otherwise than it was."""
        if facts.claims and not facts.finished:
            if not self.book.started:  # who holds a claim that several use can be said when all are known
                self.book.claims.pods[facts.uid] = facts
                return
            resolved = self.book.claims.resolved(facts)
            if resolved is None:
                return
            facts = resolved
        if facts.finished:
            refused_before = facts.uid in self._refused
            self.pod_gone(facts.uid)
            if facts.refusal and not facts.leaving:
                self._refused.add(facts.uid)
                if not refused_before:
                    self.book.want(swept(facts))
        else:
            self.pods.see(facts, now_s)
            entry = self.book.entries.get(facts.uid)
            if facts.node:
                self._stale.add(facts.node)
                if entry is not None:
                    wishes = self.pods.wishes
                    wishes.budgets.check(self.book, entry, lambda e: wishes.marks(e, now_s))
                    self.heirs.see(entry)
            if entry is not None and self.book.started:
                if facts.claims:
                    self.places.look(entry, now_s)
                self.late.look(entry, now_s)

    def pod_gone(self, uid: str) -> None:
        """It is gone, or ended. What it held by claims is free when these are."""
        if self.places.keeps(uid):
            self.heirs.gone(uid)
            return
        book = self.book
        entry = book.entries.get(uid)
        if entry is not None:
            self._stale.add(entry.node)
        self._inherits += book.claims.sharers(uid)
        book.claims.forget(uid)
        self.pods.gone(uid)
        self.heirs.gone(uid)
        self.decisions.gone(uid)
        self.pods.wishes.budgets.forget(uid)
        self.late.forget(uid)
        self._refused.discard(uid)

    def claim(self, facts: ClaimSeen, now_s: float) -> None:
        """A claim is there, or is otherwise than it was."""
        before = self.book.claims.see(facts)
        if before != facts:
            self._claim_changed(facts, now_s, *(one.node for one in (before, facts) if one is not None and one.node))

    def claim_gone(self, namespace: str, name: str, now_s: float) -> None:
        before = self.book.claims.lose((namespace, name))
        if before is not None:
            self._claim_changed(before, now_s, before.node)

    def _claim_changed(self, claim: ClaimSeen, now_s: float, *nodes: str) -> None:
        for node in filter(None, nodes):
            self.fleet.claimed(node)
            self._stale.add(node)
        if self.book.started:
            for pod in self.book.claims.users(claim.key):
                self.pod(pod, now_s)
            for uid in self.places.freed():
                self.pod_gone(uid)

    def node(self, facts: NodeSeen, now_s: float) -> None:
        self.fleet.see_node(facts, now_s)
        self._retry = True

    def node_gone(self, name: str) -> None:
        self.fleet.node_gone(name)

    def devices(self, facts: GpuNodeSeen, now_s: float) -> None:
        """What a node's agent tells of its devices."""
        self.fleet.see_devices(facts, now_s)

    def devices_gone(self, name: str) -> None:
        self.fleet.devices_gone(name)

    def set_queues(self, queues: Iterable[QueueSeen]) -> None:
        """All queues that there are."""
        self.queues.see(queues)
        if self.book.started:
            self.queues.apply(self.book, self.heirs.queues())
        self._retry = True

    def namespace(self, facts: NamespaceSeen) -> None:
        if self.queues.namespaces.get(facts.name) != facts:
            self.queues.namespaces[facts.name] = facts
            self._retry = True

    def budget(self, facts: BudgetSeen, *, there: bool = True) -> None:
        """A disruption budget is otherwise than it was, or is gone."""
        if there:
            self.pods.wishes.budgets.see(facts)
        else:
            self.pods.wishes.budgets.gone(facts.namespace, facts.name)

    def group(self, name: GroupName, needed: int | None) -> None:
        """A gang object asks for so many members; None: it is gone."""
        if needed is None:
            self.pods.wishes.groups.pop(name, None)
        else:
            self.pods.wishes.groups[name] = needed
        self._retry = True

    # ---- decisions ------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> None:
        """Decide everything that can be decided now."""
        if not self.book.started:
            return
        kinds = self.book.scheduler.kinds.version
        if self._kinds != kinds:
            self._kinds, self._retry = kinds, True
            submit_anew(self.book, self.pods)
        inherits, self._inherits = self._inherits, []
        for facts in [f for uid in inherits if (f := self.book.claims.pods.get(uid)) is not None]:
            self.pod(facts, now_s)
        submit_resized(self.book, self.pods)
        if self._retry:
            self._retry = False
            self.pods.again()
        for name in self._stale:
            self.fleet.recount(name, now_s)
        self._stale.clear()
        self.pods.unshun(now_s)
        self.unused.decide(now_s)
        self.pods.deferred(now_s)
        wishes = self.pods.wishes
        wishes.budgets.apply(self.book, lambda entry: wishes.marks(entry, now_s))
        self.late.decide(now_s)
        self.decisions.decide(now_s)
        self.book.say(now_s)

    def take_actions(self) -> list[Action]:
        """What is to be done, in order; asked once."""
        return self.book.take_actions()
