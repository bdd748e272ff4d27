"""Pod states of the planner, the indexes over them, and the actions to be carried out.

| stage | state of the pod |
|---|---|
| ASIDE | cannot be planned now: its queue or gang group does not exist, no device suits it, or another gate holds it |
| WAITING | waits in its queue for devices |
| PLACED | has devices, and waits for the evicted pods that still hold them to end |
| RELEASING | its plan is being written |
| RELEASED | kube-scheduler may place it on the planned node |
| BINDING | its binding is being written |
| BOUND | is bound to its node |
| EVICTED | is bound to its node, and its eviction was requested |
| RIDING | has no plan and needs none: its claims are counted for other pods, or request no devices of ours |

``ClusterScheduler.holds`` is true for pods whose devices the scheduler counts as in use. These are the pods from PLACED
to EVICTED, except those whose node was deleted or whose devices are not known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from calabash.binder.cluster.bundle import Bundle
from calabash.binder.cluster.cluster import ClusterScheduler
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.visibility import for_namespace
from calabash.kubernetes.planner.state.claims import Claims
from calabash.kubernetes.planner.state.deferrals import Deferrals
from calabash.kubernetes.planner.state.facts import Action, PodFacts, Report, UngatePod
from calabash.kubernetes.planner.state.gang_permits import GangName, GangPermits
from calabash.model.errors import Reason
from calabash.model.messages import Text
from calabash.model.request import AllocationId


class Stage(StrEnum):
    """Stage of a pod; see the module's description."""

    ASIDE = "aside"
    WAITING = "waiting"
    PLACED = "placed"
    RELEASING = "releasing"
    RELEASED = "released"
    BINDING = "binding"
    BOUND = "bound"
    EVICTED = "evicted"
    RIDING = "riding"


REPORT_AFTER_S = 1.0  # shorter waits are not reported
REPORT_AGAIN_S = 10.0  # between reports with the same reason
DELETED_PODS_MAX = 4096  # deleted pods whose UIDs are kept
UNBOUND = frozenset((Stage.PLACED, Stage.RELEASING, Stage.RELEASED))
SETTLED = frozenset((Stage.BINDING, Stage.BOUND, Stage.EVICTED))


@dataclass(slots=True)
class PodEntry:
    """State of one pod.

    Attributes:
        written: ID of the plan that the pod's annotation is known to have; "" if none is known.
        releases: IDs of all plans with which the removal of the pod's gate was requested.
        after: UIDs of evicted pods that still use the planned devices; the pod is released when they have ended.
        reason: why the pod waits; None if it does not wait.
        message: explanation of ``reason`` for the user.
        reported: the reason in the last report to the API server; None if none was reported.
        protected_until_s: time until which the pod is not evicted, after a budget refused its eviction.
        stale_refused: kube-scheduler offered only an older nominated node, and this was refused once for this plan.
        own_condition: reports go to the condition ``names.PLANNED`` instead of ``PodScheduled``.
        asked: kube-scheduler has asked for the planned node and was told it.
    """

    facts: PodFacts
    stage: Stage = Stage.ASIDE
    bundle: Bundle | None = None
    plan: PodPlan | None = None
    written: str = ""
    releases: tuple[str, ...] = ()
    after: frozenset[str] = frozenset()
    gang: GangName | None = None
    reason: Reason | None = None
    message: str = ""
    reported: Reason | None = None
    protected_until_s: float = 0.0
    stale_refused: bool = False
    own_condition: bool = False
    asked: bool = False

    @property
    def is_written(self) -> bool:
        """Return True if the pod's annotation holds the current plan.

        The mirror may show the annotation late. But the gate is removed in the same write as the plan is written. So if
        kube-scheduler asks about a pod that the mirror still shows as gated, and only the current plan was ever
        released, the annotation has this plan.
        """
        if self.plan is None:
            return False
        return self.written == self.plan.id or (self.facts.gated and self.releases == (self.plan.id,))

    @property
    def id(self) -> AllocationId:
        return AllocationId(self.facts.uid)

    @property
    def pod(self) -> PodName:
        return PodName(uid=self.facts.uid, namespace=self.facts.namespace, name=self.facts.name)

    @property
    def node(self) -> str:
        """Name of the node to which the pod is bound or planned; "" for none."""
        return self.facts.node or (self.plan.node if self.plan else "")


def devices_of(plan: PodPlan) -> set[str]:
    """Return the UUIDs of the devices that a plan names; all are on the plan's node."""
    return {part.device for container in plan.containers for part in container.slices}


class PodStore:
    """All pods, the indexes over them, and the queue of actions; see the module's description.

    Args:
        new_id: returns a new ID for a plan.
        hold_s: seconds for which the binding of a gang's first member is held until the last one is ready.
    """

    def __init__(self, scheduler: ClusterScheduler, *, new_id: Callable[[], str], hold_s: float) -> None:
        self.scheduler = scheduler
        self.new_id = new_id
        self.permits = GangPermits(hold_s, self.on_unready_nodes)
        self.claims = Claims()
        self.hostnames: dict[str, str] = {}  # host-name labels, by node name
        self.entries: dict[str, PodEntry] = {}
        self.on_node: dict[str, set[str]] = {}
        self.newcomers: dict[AllocationId, None] = {}
        self.aside: dict[str, None] = {}
        self.placed: dict[str, None] = {}
        self.broken_gangs: set[GangName] = set()
        self.unplanned: dict[str, None] = {}  # see ``decide.unplanned_pods``
        self.unplanned_added = False
        self.times_offered: Counter[str] = Counter()  # how often each node was returned by ``affinity.alternatives``
        self.allocating: dict[str, str] = {}  # nodes on which kube-scheduler may be allocating claims, by pod
        self.deferrals = Deferrals()
        self.unbound: dict[str, None] = {}  # pods with a plan that are not bound
        self.refusals: list[tuple[str, str]] = []  # held bindings to be refused: UID, text
        self.unready: set[str] = set()  # nodes whose kubelet offers no devices
        self._unreported: dict[str, float] = {}  # when the pod's reason is to be reported, by UID
        self.started = False
        self._actions: list[Action] = []
        self._deleted: dict[str, None] = {}

    def add_action(self, action: Action) -> None:
        """Append an action."""
        self._actions.append(action)

    def take_actions(self) -> list[Action]:
        """Return and remove all actions, in order."""
        actions, self._actions = self._actions, []
        return actions

    def add(self, facts: PodFacts) -> PodEntry:
        """Add a pod and return its entry."""
        entry = self.entries[facts.uid] = PodEntry(facts)
        return entry

    def set_plan(self, entry: PodEntry, plan: PodPlan | None) -> None:
        """Replace the pod's plan; None removes it."""
        self._unindex(entry)
        entry.plan = plan
        entry.asked = False
        self._index(entry)

    def update_facts(self, entry: PodEntry, facts: PodFacts) -> None:
        """Replace the facts that were read of the pod, and update the indexes."""
        self._unindex(entry)
        entry.facts = facts
        self._index(entry)

    def has_pending_binding(self, node: str) -> bool:
        """Return True if a binding to the node is being written, or kube-scheduler may be allocating claims there."""
        if node in self.allocating.values():
            return True
        return any(self.entries[uid].stage is Stage.BINDING for uid in self.on_node.get(node, ()))

    def on_unready_nodes(self, uids: Collection[str]) -> frozenset[str]:
        """Return those of the pods whose planned nodes offer no device IDs now, so their kubelets would reject them."""
        if not self.unready:
            return frozenset()
        return frozenset(uid for uid in uids if (e := self.entries.get(uid)) is not None and e.node in self.unready)

    def has_claims(self, uid: str) -> bool:
        """Return True if the pod exists and gets devices by claims: its own, or one that kube-scheduler creates."""
        entry = self.entries.get(uid)
        return entry is not None and entry.facts.by_claims

    def is_or_was_known(self, uid: str) -> bool:
        """Return True if the pod exists or is among the last DELETED_PODS_MAX deleted pods.

        The node of a deleted pod may still report its slices; these must not be taken for slices of an unknown pod.
        """
        return uid in self.entries or uid in self._deleted

    def remove(self, entry: PodEntry) -> None:
        """Remove the pod from all indexes."""
        self._deleted[entry.facts.uid] = None
        if len(self._deleted) > DELETED_PODS_MAX:
            del self._deleted[next(iter(self._deleted))]
        self._unindex(entry)
        self.newcomers.pop(entry.id, None)
        self.aside.pop(entry.facts.uid, None)
        self.placed.pop(entry.facts.uid, None)
        self.unplanned.pop(entry.facts.uid, None)
        self._unreported.pop(entry.facts.uid, None)
        self.allocating.pop(entry.facts.uid, None)
        self.unbound.pop(entry.facts.uid, None)
        self.deferrals.reset(entry.facts.uid)
        if entry.gang is not None:
            self.permits.remove_member(entry.facts.uid, entry.gang)
        self.entries.pop(entry.facts.uid, None)

    def set_aside(self, entry: PodEntry, reason: Reason, message: Text) -> None:
        """Set the stage ASIDE: the pod is in no queue until it changes or an object that it needs changes."""
        entry.stage = Stage.ASIDE
        entry.after = frozenset()
        self.aside[entry.facts.uid] = None
        if not entry.facts.leaving:
            self.set_reason(entry, reason, message)

    def withdraw_plan(self, entry: PodEntry, reason: Reason, message: Text) -> None:
        """Withdraw a plan that cannot be used: free its devices and set the pod aside.

        A gang without a bound member then loses the plans of its other members as well (``broken_gangs``).
        """
        if entry.gang is not None:
            self.broken_gangs.add(entry.gang)
        self.refuse_held_binding(entry, message)
        if self.scheduler.holds(entry.id):
            self.scheduler.unbind(entry.id)  # else a member of a gang would count as ended
        self.scheduler.finished(entry.id)
        self.newcomers.pop(entry.id, None)
        self.placed.pop(entry.facts.uid, None)
        self.unplanned.pop(entry.facts.uid, None)
        self.set_plan(entry, None)
        self.set_aside(entry, reason, message)

    def refuse_held_binding(self, entry: PodEntry, message: Text) -> None:
        """Refuse the pod's binding request if it is held for its gang; kube-scheduler gets ``message`` as reason."""
        if entry.gang is not None and self.permits.holds(entry.facts.uid, entry.gang):
            self.permits.cancel_hold(entry.facts.uid, entry.gang)
            self.refusals.append((entry.facts.uid, self.text_for(entry.pod, message)))

    def set_riding(self, entry: PodEntry) -> None:
        """Set the stage RIDING and add the action that removes the gate.

        Such a pod needs no plan, because kube-scheduler places it on the node on which its claims are allocated.
        """
        entry.stage = Stage.RIDING
        self.aside.pop(entry.facts.uid, None)
        self.set_reason(entry, None, "its claims are allocated")
        if entry.facts.gated:
            self.add_action(UngatePod(pod=entry.pod))

    def set_waiting(self, entry: PodEntry) -> None:
        """Remove the pod's plan and set the stage WAITING; the next decision includes the pod.

        An ungated pod of another scheduler that has candidate nodes becomes an unplanned pod instead.
        """
        if entry.gang is not None and entry.stage in UNBOUND:
            self.broken_gangs.add(entry.gang)
        self.set_plan(entry, None)
        entry.after = frozenset()
        if entry.facts.candidate_nodes and not (entry.facts.uses_our_scheduler or entry.facts.gated):
            self.scheduler.finished(entry.id)  # its candidate nodes cannot be changed any more
            entry.stage = Stage.ASIDE
            self.unplanned[entry.facts.uid] = None
            self.unplanned_added = True
            return
        entry.stage = Stage.WAITING
        self.aside.pop(entry.facts.uid, None)
        self.newcomers[entry.id] = None

    def set_reason(self, entry: PodEntry, reason: Reason | None, message: Text) -> None:
        """Set why the pod waits (None: it does not wait), to be reported by ``add_due_reports``.

        The message is rendered for users of the pod's namespace.
        """
        text = self.text_for(entry.pod, message)
        if (entry.reason, entry.message) != (reason, text):
            entry.reason, entry.message = reason, text
            if reason is not None or entry.reported is not None:
                self._unreported.setdefault(entry.facts.uid, math.inf)
            else:
                self._unreported.pop(entry.facts.uid, None)

    def add_due_reports(self, now_s: float) -> None:
        """Add reports for pods that have waited for REPORT_AFTER_S, and for reported pods that wait no longer.

        Most pods are planned at once; a report for each would cost the API server more than their plans.
        """
        for uid, before_s in list(self._unreported.items()):
            entry = self.entries[uid]
            reason, message = entry.reason, entry.message
            if reason is not None:
                due_s = min(before_s, now_s + (REPORT_AGAIN_S if reason is entry.reported else REPORT_AFTER_S))
                if due_s > now_s:
                    self._unreported[uid] = due_s
                    continue
            del self._unreported[uid]
            entry.reported = reason
            own = bool(entry.facts.node) or entry.own_condition
            self.add_action(Report(pod=entry.pod, reason=reason, message=message, own_condition=own))

    def text_for(self, pod: PodName, message: Text) -> str:
        """Return the text of a message without names that users of the pod's namespace may not read."""

        def pod_of(uid: str) -> PodName | None:
            found = self.entries.get(uid)
            return found.pod if found is not None else None

        return for_namespace(message, pod.namespace, queues=lambda: self._queues_of(pod.uid), pod_of=pod_of)

    def _queues_of(self, uid: str) -> set[str]:
        """Return the pod's queue and the queues above it."""
        entry, form = self.entries.get(uid), self.scheduler.scheduler.tree.form
        number = form.index.get(entry.bundle.request.queue) if entry is not None and entry.bundle is not None else None
        path = form.paths[number] if number is not None else ()
        return {name for name, one in form.index.items() if one in path}

    def _unindex(self, entry: PodEntry) -> None:
        there = self.on_node.get(entry.node)
        if there is not None:
            there.discard(entry.facts.uid)
            if not there:
                del self.on_node[entry.node]

    def _index(self, entry: PodEntry) -> None:
        if entry.node and entry.facts.uid in self.entries:
            self.on_node.setdefault(entry.node, set()).add(entry.facts.uid)
        if entry.plan is not None and not entry.facts.node:
            self.unbound[entry.facts.uid] = None
        else:
            self.unbound.pop(entry.facts.uid, None)
