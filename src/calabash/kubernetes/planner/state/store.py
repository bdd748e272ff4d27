"""Store of the planner's pods: their entries and the indexes over them.

Only the methods of the store change an entry or an index. The stage of a pod changes by ``advance``, whose table is
``pod_lifecycle.POD_LIFECYCLE``. Methods that have an effect besides the stage (a plan, an action, an index) call
``advance`` themselves; for other events, the handlers in ``decide`` call it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from calabash.binder.cluster.bundle import Bundle
from calabash.binder.cluster.cluster import ClusterScheduler
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.planner.state.actions import PodActions
from calabash.kubernetes.planner.state.claims import Claims
from calabash.kubernetes.planner.state.deferrals import Deferrals
from calabash.kubernetes.planner.state.facts import EvictPod, PodFacts, ReleasePod, UngatePod
from calabash.kubernetes.planner.state.gang_permits import GangName, GangPermits
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import POD_LIFECYCLE, UNBOUND, PodEvent, Stage
from calabash.kubernetes.planner.state.retry_queue import RetryQueue
from calabash.model.errors import Reason
from calabash.model.messages import Text
from calabash.model.request import AllocationId
from calabash.model.state_machine import UnlistedTransitionError

DELETED_PODS_MAX = 4096  # deleted pods whose UIDs are kept


def raise_unlisted(error: UnlistedTransitionError) -> None:
    """Raise the error, so that the core ends: the table lists no transition for this stage and event."""
    raise error


class PodStore:
    """All pods and the indexes over them; see the module's description.

    Args:
        new_id: returns a new ID for a plan.
        hold_s: seconds for which the binding of a gang's first member is held until the last one is ready.
        on_unlisted: called if the table lists no transition for a pod's stage and event. If it returns, the pod keeps
            its stage, and its entry is built anew from its facts in the next decision (``take_rebuilds``).

    Attributes:
        hostnames: host-name labels, by node name.
        unplanned: pods that have a node or candidate nodes, but no plan; see ``decide.unplanned_pods``.
        times_offered: how often each node was returned by ``affinity.alternatives``.
        unbound: pods with a plan that are not bound.
        unready: nodes that get no pods now, with the reason.
        started: the state of all existing pods and nodes is complete.
    """

    def __init__(
        self,
        scheduler: ClusterScheduler,
        *,
        new_id: Callable[[], str],
        hold_s: float,
        on_unlisted: Callable[[UnlistedTransitionError], None] = raise_unlisted,
    ) -> None:
        self.scheduler = scheduler
        self.new_id = new_id
        self.permits = GangPermits(hold_s, self.on_unready_nodes)
        self.claims = Claims()
        self.deferrals = Deferrals()
        self.unplanned = RetryQueue()
        self.started = False
        self._hostnames: dict[str, str] = {}
        self.hostnames: Mapping[str, str] = self._hostnames
        self._entries: dict[str, PodEntry] = {}
        self.entries: Mapping[str, PodEntry] = self._entries
        self._on_node: dict[str, set[str]] = {}
        self.on_node: Mapping[str, AbstractSet[str]] = self._on_node
        self._times_offered: Counter[str] = Counter()
        self.times_offered: Mapping[str, int] = self._times_offered
        self.actions = PodActions(self.entries, scheduler=lambda: self.scheduler)
        self._unbound: dict[str, None] = {}
        self.unbound: Mapping[str, None] = self._unbound
        self._unready: dict[str, str] = {}
        self.unready: Mapping[str, str] = self._unready
        self._newcomers: dict[AllocationId, None] = {}
        self.newcomers: Mapping[AllocationId, None] = self._newcomers
        self.on_unlisted = on_unlisted
        self._rebuilds: dict[str, None] = {}
        self._aside: dict[str, None] = {}
        self._placed: dict[str, None] = {}
        self._broken_gangs: set[GangName] = set()
        self._allocating: dict[str, str] = {}  # nodes on which kube-scheduler may be allocating claims, by pod
        self._refusals: list[tuple[str, str]] = []  # held bindings to be refused: UID, text
        self._deleted: dict[str, None] = {}

    def use_scheduler(self, scheduler: ClusterScheduler) -> None:
        """Use another scheduler from now on, to which all existing nodes were added already."""
        self.scheduler = scheduler

    def set_started(self) -> None:
        """Record that all existing pods are in the store."""
        self.started = True

    def set_hostname(self, node: str, hostname: str) -> None:
        """Set the host-name label of a node."""
        self._hostnames[node] = hostname

    def set_unready(self, node: str, why: str) -> None:
        """Record why a node gets no pods now; "" if it may get some, and for a node without devices."""
        self._unready.pop(node, None)
        if why:
            self._unready[node] = why

    def count_offers(self, nodes: Iterable[str]) -> None:
        """Count that the nodes were offered to a pod."""
        self._times_offered.update(nodes)

    def advance(self, entry: PodEntry, event: PodEvent) -> bool:
        """Change the pod's stage as the table says. Returns False if the table does not list the event for its stage."""
        try:
            POD_LIFECYCLE.advance(entry, event, name=entry.facts.uid)
        except UnlistedTransitionError as error:
            self.on_unlisted(error)
            self._rebuilds[entry.facts.uid] = None
            return False
        return True

    def take_rebuilds(self) -> list[PodEntry]:
        """Return and forget the pods whose entries must be built anew, because an event was not in the table."""
        rebuilds, self._rebuilds = self._rebuilds, {}
        return [self._entries[uid] for uid in rebuilds if uid in self._entries]

    def add(self, facts: PodFacts) -> PodEntry:
        """Add a pod and return its entry."""
        entry = self._entries[facts.uid] = PodEntry(facts)
        self._index(entry)
        return entry

    def update_facts(self, entry: PodEntry, facts: PodFacts) -> None:
        """Replace the facts that were read of the pod, and update the indexes."""
        if facts.node == entry.facts.node:
            entry.facts = facts
        else:
            self._unindex(entry)
            entry.facts = facts
            self._index(entry)

    def set_plan(self, entry: PodEntry, plan: PodPlan | None) -> None:
        """Replace the pod's plan; None removes it."""
        if plan is None and entry.plan is None:
            return
        self._unindex(entry)
        entry.plan = plan
        entry.asked = entry.stale_refused = False
        self._index(entry)

    def set_written(self, entry: PodEntry, plan_id: str) -> None:
        """Record that the pod's annotation has the plan."""
        entry.written = plan_id
        seen = entry.facts.plan
        if seen is not None and seen is not entry.plan and seen == entry.plan:
            entry.plan = seen  # keep one of the two equal objects

    def set_bundle(self, entry: PodEntry, bundle: Bundle | None) -> None:
        """Set the request of the pod; None: it requests nothing."""
        entry.bundle = bundle

    def set_gang(self, entry: PodEntry, gang: GangName, needed: int) -> None:
        """Add the pod to its gang, of which ``needed`` members must start together."""
        entry.gang = gang
        self.permits.add_member(entry.facts.uid, gang, needed)

    def set_asked(self, entry: PodEntry) -> None:
        """Record that kube-scheduler has asked for the planned node and was told it."""
        entry.asked = True

    def set_stale_refused(self, entry: PodEntry) -> None:
        """Record that an older nominated node was refused once for the present plan."""
        entry.stale_refused = True

    def protect(self, entry: PodEntry, until_s: float) -> None:
        """Protect the pod from evictions until the given time."""
        entry.protected_until_s = until_s

    def set_answer(self, uid: str, node: str | None) -> None:
        """Record that kube-scheduler was told this node and may allocate the pod's claims on it; None: no node."""
        self._allocating.pop(uid, None)
        if node is not None:
            entry = self._entries[uid]
            entry.asked = True
            if entry.facts.by_claims:
                self._allocating[uid] = node

    def remove(self, entry: PodEntry) -> None:
        """Remove the pod from all indexes."""
        uid = entry.facts.uid
        self._deleted[uid] = None
        if len(self._deleted) > DELETED_PODS_MAX:
            del self._deleted[next(iter(self._deleted))]
        self._unindex(entry)
        self.cancel(entry)
        self.unplanned.remove(uid)
        self.actions.pod_deleted(uid)
        self._allocating.pop(uid, None)
        self._unbound.pop(uid, None)
        self.deferrals.reset(uid)
        if entry.gang is not None:
            self.permits.remove_member(uid, entry.gang)
        self._entries.pop(uid, None)

    def has_pending_binding(self, node: str) -> bool:
        """Return True if a binding to the node is being written, or kube-scheduler may be allocating claims there."""
        if node in self._allocating.values():
            return True
        return any(self.entries[uid].stage is Stage.BINDING for uid in self.on_node.get(node, ()))

    def on_unready_nodes(self, uids: Collection[str]) -> frozenset[str]:
        """Return those of the pods whose planned nodes offer no device IDs now, so their kubelets would reject them."""
        known = (e for uid in uids if (e := self.entries.get(uid)) is not None) if self.unready else ()
        return frozenset(e.facts.uid for e in known if e.node in self.unready)

    def has_claims(self, uid: str) -> bool:
        """Return True if the pod exists and gets its devices by claims (``PodFacts.by_claims``)."""
        entry = self.entries.get(uid)
        return entry is not None and entry.facts.by_claims

    def is_or_was_known(self, uid: str) -> bool:
        """Return True if the pod exists or is among the last DELETED_PODS_MAX deleted pods.

        The node of a deleted pod may still report its slices; these must not be taken for slices of an unknown pod.
        """
        return uid in self.entries or uid in self._deleted

    def aside(self) -> list[PodEntry]:
        """Return the pods that wait for a change of themselves or of an object that they need."""
        return [self._entries[uid] for uid in self._aside]

    def cancel(self, entry: PodEntry) -> None:
        """Remove the pod's request from the scheduler, and the pod from ``aside``, newcomers and placed pods."""
        self.scheduler.finished(entry.id)
        self._newcomers.pop(entry.id, None)
        self._aside.pop(entry.facts.uid, None)
        self._placed.pop(entry.facts.uid, None)

    def free(self, entry: PodEntry) -> None:
        """Free the pod's devices and cancel its request. The scheduler does not count it as an ended gang member."""
        if self.scheduler.holds(entry.id):
            self.scheduler.unbind(entry.id)
        self.cancel(entry)

    def list_aside(self, entry: PodEntry, reason: Reason, message: Text) -> None:
        """Add the pod to ``aside`` and explain why; the pod's stage is unchanged."""
        self._aside[entry.facts.uid] = None
        if not entry.facts.leaving:
            self.actions.set_reason(entry, reason, message)

    def unlist_aside(self, entry: PodEntry) -> None:
        """Remove the pod from ``aside``."""
        self._aside.pop(entry.facts.uid, None)

    def set_aside(self, entry: PodEntry, event: PodEvent) -> None:
        """Apply an event that sets the stage ASIDE: the pod is in no queue until it or an object that it needs changes.

        An unbound pod loses its plan and its devices. A bound pod keeps them, because it may be using them.
        """
        if self.advance(entry, event):
            entry.after = frozenset()
            if not entry.facts.node:
                self.free(entry)
                self.set_plan(entry, None)
                self.unplanned.remove(entry.facts.uid)
            self._aside[entry.facts.uid] = None

    def withdraw_plan(self, entry: PodEntry, event: PodEvent, reason: Reason, message: Text) -> None:
        """Apply an event after which the pod's plan cannot be used: free its devices and set the pod aside.

        A gang without a bound member then loses the plans of its other members as well (``take_broken_gangs``).
        """
        if entry.gang is not None:
            self._broken_gangs.add(entry.gang)
        self.refuse_held_binding(entry, message)
        self.free(entry)
        self.unplanned.remove(entry.facts.uid)
        if event is PodEvent.PLAN_UNUSED:
            entry.own_condition = True  # kube-scheduler writes ``PodScheduled``
        self.set_plan(entry, None)
        self.set_aside(entry, event)
        self.list_aside(entry, reason, message)

    def refuse_held_binding(self, entry: PodEntry, message: Text) -> None:
        """Refuse the pod's binding request if it is held for its gang; kube-scheduler gets ``message`` as reason."""
        if entry.gang is not None and self.permits.holds(entry.facts.uid, entry.gang):
            self.permits.cancel_hold(entry.facts.uid, entry.gang)
            self._refusals.append((entry.facts.uid, self.actions.text_for(entry.pod, message)))

    def take_refusals(self) -> list[tuple[str, str]]:
        """Return and forget the refused held bindings: UIDs of pods with the reasons."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def set_riding(self, entry: PodEntry) -> None:
        """Set the stage RIDING: the pod needs no devices of its own, so no plan. Add the action that removes its gate."""
        if self.advance(entry, PodEvent.SHARES_CLAIMS):
            self._aside.pop(entry.facts.uid, None)
            why = "its gang starts" if entry.facts.member else "its claims are allocated"
            self.actions.set_reason(entry, None, why)
            if entry.facts.gated:
                self.actions.add(UngatePod(pod=entry.pod))

    def set_waiting(self, entry: PodEntry, *, is_decided: bool = False) -> None:
        """Remove the pod's plan and set the stage WAITING; the next decision includes the pod.

        An ungated pod of another scheduler that has candidate nodes becomes an unplanned pod instead.

        Args:
            is_decided: the present decision has included the pod already, so the pod is not added to the newcomers.
        """
        if entry.gang is not None and entry.stage in UNBOUND:
            self._broken_gangs.add(entry.gang)
        confined = entry.facts.candidate_nodes and not (entry.facts.uses_our_scheduler or entry.facts.gated)
        if not self.advance(entry, PodEvent.CONFINED if confined else PodEvent.SUBMITTED):
            return
        self.set_plan(entry, None)
        entry.after = frozenset()
        self._aside.pop(entry.facts.uid, None)
        if confined:
            self.scheduler.finished(entry.id)  # its candidate nodes cannot be changed any more
            self.unplanned.put(entry.facts.uid)
        elif not is_decided:
            self._newcomers[entry.id] = None

    def take_newcomers(self) -> list[AllocationId]:
        """Return and forget the requests that were submitted since the last decision."""
        newcomers = list(self._newcomers)
        self._newcomers.clear()
        return newcomers

    def remove_newcomer(self, entry: PodEntry) -> None:
        """Remove the pod from the pods that the next decision includes."""
        self._newcomers.pop(entry.id, None)

    def take_broken_gangs(self) -> list[GangName]:
        """Return and forget the gangs of which a member lost its plan."""
        broken = list(self._broken_gangs)
        self._broken_gangs.clear()
        return broken

    def release(self, entry: PodEntry, event: PodEvent, nodes: tuple[str, ...]) -> None:
        """Apply an event that sets the stage RELEASING; add the action that writes the plan and removes the pod's gate.

        Args:
            nodes: candidate nodes of a pod whose scheduler does not ask the planner; see ``ReleasePod``.
        """
        assert entry.plan is not None
        if self.advance(entry, event):
            entry.releases += (entry.plan.id,)
            self.actions.add(ReleasePod(pod=entry.pod, plan=entry.plan, nodes=nodes))

    def wait_for_devices(self, entry: PodEntry, after: frozenset[str]) -> None:
        """Keep a planned pod waiting until the evicted pods ``after`` free its devices; see ``take_unblocked``."""
        if self.advance(entry, PodEvent.ASSIGNED_BUSY):
            entry.after = after
            self._placed[entry.facts.uid] = None

    def waiting_for(self, uid: str) -> list[PodEntry]:
        """Return the pods that are planned on devices which the evicted pod still uses."""
        placed = [self._entries[name] for name in self._placed]
        return [entry for entry in placed if entry.stage is Stage.PLACED and uid in entry.after]

    def take_unblocked(self, uid: str) -> list[PodEntry]:
        """Record that an evicted pod has ended; return the pods that were waiting for its devices only."""
        unblocked: list[PodEntry] = []
        for name in list(self._placed):
            entry = self._entries[name]
            entry.after -= {uid}
            if entry.stage is not Stage.PLACED or not entry.after:
                del self._placed[name]
                unblocked += [entry] if entry.stage is Stage.PLACED else []
        return unblocked

    def evict(self, entry: PodEntry, action: EvictPod) -> None:
        """Set the stage of a pod that is to be evicted, and add the action that evicts it."""
        if self.advance(entry, PodEvent.EVICTION_REQUESTED):
            self.actions.add(action)

    def _unindex(self, entry: PodEntry) -> None:
        there = self._on_node.get(entry.node)
        if there is not None:
            there.discard(entry.facts.uid)
            if not there:
                del self._on_node[entry.node]

    def _index(self, entry: PodEntry) -> None:
        if entry.node and entry.facts.uid in self.entries:
            self._on_node.setdefault(entry.node, set()).add(entry.facts.uid)
        if entry.plan is not None and not entry.facts.node:
            self._unbound[entry.facts.uid] = None
        else:
            self._unbound.pop(entry.facts.uid, None)
