"""Answers to kube-scheduler: on which node a pod may run, where it may preempt pods, and when it is bound.

Theory of operation. kube-scheduler checks CPU, affinity, taints and volumes, and offers the nodes that pass; the pod
store knows the devices. A pod may run on its planned node only. If kube-scheduler does not offer the planned node, the
pod is planned again on one of the offered nodes before the answer is sent. The new devices are reserved from then on,
so a repeated question gets the same answer. kube-scheduler offers the nominated node alone first. If that nomination is
older than the plan, the offer is refused once: otherwise the plan would be changed back to the old node although the
planned node was not offered yet.

kube-scheduler does not count the kubelets' device IDs (``scheduler_config``). A kubelet may offer none for a while, for
example while the node's agent is replaced. A planned node is then refused here. The plan stays, and ``unused_plans``
withdraws it if this state lasts. A binding that is already held for its gang stays held until the kubelet offers device
IDs again or the time limit of the hold ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from calabash.binder.cluster.upkeep import rebind
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.planner.decide.decisions import Decisions
from calabash.kubernetes.planner.decide.pods import Pods
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.gang_permits import GangName
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import UNBOUND, PodEvent, Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.messages import in_full

UNKNOWN = "the planner does not know this pod yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterAnswer:
    """Answer to the question on which of the offered nodes a pod may run.

    Args:
        node: the only node on which the pod may run. If it is None, the pod may run on no offered node, or with
            ``anywhere`` on all of them.
        text: explanation for the user if no node is permitted.
        anywhere: all offered nodes are permitted, because the pod needs no plan.
    """

    node: str | None
    text: str = ""
    anywhere: bool = False


class BindVerdict(StrEnum):
    """Answer to the request to bind a pod.

    GO: bind the pod now. HOLD: wait, because its gang is not complete. DONE: the pod is bound to this node already.
    REFUSE: the pod may not be bound to this node, or not now.
    """

    GO = "go"
    HOLD = "hold"
    DONE = "done"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindAnswer:
    """Answer to the request to bind a pod.

    Args:
        text: explanation, unless the verdict is GO or DONE.
        plan: plan that must be in the pod's annotation when the pod is bound; None for a pod that needs no plan.
        written: the annotation has this plan already.
    """

    verdict: BindVerdict
    text: str = ""
    plan: PodPlan | None = None
    written: bool = False


class ExtenderAnswers:
    """Answers to kube-scheduler; see the module's description."""

    def __init__(self, store: PodStore, pods: Pods, decisions: Decisions) -> None:
        self._store = store
        self._pods = pods
        self._decisions = decisions
        self._released: set[str] = set()

    # ---- filter and preempt ---------------------------------------------------------------------------------------

    def planned_node(self, uid: str) -> str | None:
        """Return the node on which the pod may run now; None if it has no plan, or its plan cannot be used now.

        May be called without the core's lock, because it reads only one entry and the state of its node.
        """
        entry = self._store.entries.get(uid)
        if entry is None or entry.plan is None or entry.stage in (Stage.PLACED, Stage.EVICTED):
            return None
        if entry.plan.node in self._store.unready:
            return None
        self._store.set_asked(entry)
        return entry.plan.node

    def filter(self, uid: str, offered: Sequence[str], nominated: str, now_s: float) -> FilterAnswer:
        """Return on which of the offered nodes the pod may run.

        Between this answer and the request to bind, kube-scheduler may allocate the pod's claims on the node. The node
        is therefore recorded (``set_answer``) until the next question about the pod.

        Args:
            offered: names of the nodes that kube-scheduler offers.
            nominated: the pod's nominated node, as kube-scheduler knows it; "" for none.
        """
        answer = self._filtered(uid, offered, nominated, now_s)
        self._store.set_answer(uid, answer.node)
        return answer

    def preempt(self, uid: str, offered: Collection[str]) -> list[str]:
        """Return the offered nodes on which kube-scheduler may preempt pods for this one: the planned node."""
        node = self.planned_node(uid)
        return [node] if node is not None and node in offered else []

    # ---- bind -----------------------------------------------------------------------------------------------------

    def bind(self, uid: str, node: str, now_s: float) -> BindAnswer:
        """Return the verdict on binding the pod to the node now.

        After the verdict HOLD, the caller asks again once ``released_holds`` returns the pod.
        """
        self._store.set_answer(uid, None)
        entry = self._store.entries.get(uid)
        if entry is None:
            return BindAnswer(verdict=BindVerdict.REFUSE, text=UNKNOWN)
        if entry.facts.node:
            done = entry.facts.node == node
            verdict = BindVerdict.DONE if done else BindVerdict.REFUSE
            return BindAnswer(verdict=verdict, text="" if done else f"the pod is bound to {entry.facts.node}")
        riding = entry.stage is Stage.RIDING
        if not riding and (
            entry.plan is None or entry.stage in (Stage.PLACED, Stage.EVICTED) or entry.plan.node != node
        ):
            planned = entry.plan.node if entry.plan else "no node yet"
            return BindAnswer(verdict=BindVerdict.REFUSE, text=f"the pod is planned on {planned}")
        if entry.gang is not None and entry.stage is not Stage.BINDING and uid not in self._released:
            self._released.update(self._store.permits.request_binding(uid, entry.gang, now_s))
            if uid not in self._released:
                there, needed = self._store.permits.progress(entry.gang)
                text = f"gang {entry.gang[1]}: {there} of {needed} members are ready to be bound"
                return BindAnswer(verdict=BindVerdict.HOLD, text=text)
        self._released.discard(uid)
        if entry.stage in UNBOUND and node in self._store.unready:
            if entry.gang is not None:
                self._store.permits.cancel_hold(uid, entry.gang)
            return BindAnswer(verdict=BindVerdict.REFUSE, text=self._store.unready[node])
        if not riding:
            self._store.advance(entry, PodEvent.BINDING_APPROVED)
        if entry.gang is not None:
            self._store.permits.set_bound(uid, entry.gang)
        plan = None if riding else entry.plan
        return BindAnswer(verdict=BindVerdict.GO, plan=plan, written=entry.is_written)

    def released_holds(self) -> list[str]:
        """Return the pods whose gang is complete and for which ``bind`` was not called again yet."""
        return list(self._released)

    def release_ready_holds(self) -> list[str]:
        """Return the pods whose held bindings may be written now.

        The bindings of a complete gang stay held while the node of a member offers no device IDs. The result has the
        pods of ``released_holds`` and those of complete gangs whose nodes offer device IDs again.
        """
        self._released.update(self._store.permits.ready_members())
        return self.released_holds()

    def cancel_hold(self, uid: str) -> None:
        """Stop holding a binding, because kube-scheduler has closed the request."""
        entry = self._store.entries.get(uid)
        self._released.discard(uid)
        if entry is not None and entry.gang is not None and entry.stage is not Stage.BINDING:
            self._store.permits.cancel_hold(uid, entry.gang)

    def binding_written(self, uid: str, plan_id: str, *, ok: bool) -> None:
        """Record whether the binding was written (``ok``) or refused by the API server.

        Does nothing unless the pod is being bound.
        """
        entry = self._store.entries.get(uid)
        if entry is None or entry.stage is not Stage.BINDING:
            return
        if ok:
            self._store.set_written(entry, plan_id)
            self._store.advance(entry, PodEvent.BINDING_WRITTEN)
        else:
            self._store.advance(entry, PodEvent.BINDING_REFUSED)
            if entry.gang is not None:
                self._store.permits.set_unbound(uid, entry.gang)
            if not (self._store.scheduler.holds(entry.id) or is_allocated(entry.plan)):
                self._pods.wait_again(entry)  # the planned node was deleted meanwhile

    def take_expired(self, now_s: float) -> list[tuple[str, str]]:
        """Return and forget the held bindings that are to be refused now, each as the pod's UID and the explanation.

        A held binding is refused if its gang was not complete within the time limit, or if its gang lost a plan.
        """
        refused = self._store.take_refusals()
        over: dict[GangName, list[str]] = {}
        for uid in self._store.permits.take_expired(now_s):
            self._released.discard(uid)
            entry = self._store.entries.get(uid)
            if entry is not None and entry.gang is not None:
                over.setdefault(entry.gang, []).append(uid)
        for gang, members in over.items():
            refused += [(uid, self._incomplete_text(gang, members)) for uid in members]
        return refused

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _filtered(self, uid: str, offered: Sequence[str], nominated: str, now_s: float) -> FilterAnswer:
        entry = self._store.entries.get(uid)
        if entry is None or entry.stage is Stage.RIDING:
            return FilterAnswer(node=None, text=UNKNOWN, anywhere=entry is not None)
        if entry.plan is None or entry.stage is Stage.PLACED or entry.stage is Stage.EVICTED:
            if offered:
                self._store.deferrals.kube_scheduler_asked(uid)
            return FilterAnswer(node=None, text=in_full(entry.message) or "the pod waits for devices")
        planned = entry.plan.node
        if planned in offered:
            unready = self._store.unready.get(planned, "") if entry.stage in UNBOUND else ""
            return FilterAnswer(node=None if unready else planned, text=unready)
        if entry.stage not in UNBOUND or is_allocated(entry.plan):
            why = "the pod is being bound to" if entry.stage not in UNBOUND else "its claims are allocated on"
            return FilterAnswer(node=None, text=f"{why} {planned}")
        if len(offered) == 1 and offered[0] == nominated and not entry.stale_refused:
            self._store.set_stale_refused(entry)
            return FilterAnswer(node=None, text=f"the pod is planned on {planned}")
        return self._replan(entry, offered, now_s)

    def _incomplete_text(self, gang: GangName, members: Collection[str]) -> str:
        """Return the explanation for held members of a gang that could not be bound in time."""
        there, needed = self._store.permits.progress(gang)
        without = sorted({self._store.entries[uid].node for uid in self._store.on_unready_nodes(members)})
        if without:
            return f"gang {gang[1]}: members could not be bound in time, because {self._store.unready[without[0]]}"
        return f"gang {gang[1]}: only {there} of {needed} members could be bound in time"

    def _replan(self, entry: PodEntry, offered: Sequence[str], now_s: float) -> FilterAnswer:
        store = self._store
        before = entry.plan.node if entry.plan else ""
        start = rebind(store.scheduler, entry.id, offered, now_s)
        if start is None:
            store.set_waiting(entry)
            count = len(offered)
            return FilterAnswer(
                node=None, text=f"{before} cannot take the pod, and none of {count} other nodes has the devices"
            )
        if not self._decisions.apply_replan(entry, start):
            return FilterAnswer(node=None, text=in_full(entry.message))
        return FilterAnswer(node=start.node)
