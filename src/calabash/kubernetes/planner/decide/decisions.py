"""Turn decisions of the scheduler into actions: plans, evictions, moves and reports.

Theory of operation. The scheduler decides that a pod starts, stops, moves or waits.

* Start: if the planned devices are free, the pod is released at once. If evicted pods still use them, the pod waits
  until these pods have terminated.
* Stop: a victim that is not bound loses its plan. A bound victim is evicted through the API server, which checks
  disruption budgets.
* Move: the pod is evicted, and its new placement is reserved for the replacement pod (``relocations``).

If a budget refuses an eviction, the whole decision is cancelled: the victim holds its devices again and is not chosen
for PROTECTED_S seconds, and the pod for which it was chosen waits.
"""

from __future__ import annotations

from collections.abc import Collection

from calabash.binder.cluster.cluster import MoveBundle, StartBundle
from calabash.binder.local.machine import Stop, Wait
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.visibility import budget_reference, pod_reference, pod_references
from calabash.kubernetes.planner.decide.pods import Pods
from calabash.kubernetes.planner.decide.relocations import Relocations
from calabash.kubernetes.planner.state.affinity import alternatives
from calabash.kubernetes.planner.state.deferrals import EarlyEnd
from calabash.kubernetes.planner.state.facts import (
    Action,
    EvictPod,
    Nominate,
    ReleasePod,
    Report,
    SweepPod,
    UngatePod,
    WritePlan,
)
from calabash.kubernetes.planner.state.gang_members import member_note
from calabash.kubernetes.planner.state.pod_entry import PodEntry, devices_of
from calabash.kubernetes.planner.state.pod_lifecycle import SETTLED, UNBOUND, PodEvent, Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.errors import Reason
from calabash.model.messages import Message, PodReference, Text, joined
from calabash.sched import OTHER_MODEL, Explanation

PROTECTED_S = 60.0
REFUSED_FIRST_S, REFUSED_MAX_S = 30.0, 600.0  # deferrals of a pod for which the API server refused a write
REFUSED_HINT = "the pod is planned again when it changes: remove what the message names, for example large annotations"
_STAGES_OF_WRITES: dict[type[Action], Collection[Stage]] = {  # in other stages, a refused write has no consequence
    ReleasePod: (Stage.RELEASING, Stage.RELEASED),
    WritePlan: (Stage.BOUND,),
    UngatePod: (Stage.RIDING,),
    Nominate: (),
    Report: (),
    SweepPod: (),
}


class Decisions:
    """Turn scheduler decisions into actions; see the module's description."""

    def __init__(self, store: PodStore, pods: Pods, relocations: Relocations) -> None:
        self._store = store
        self._pods = pods
        self._relocations = relocations
        self._protected: set[str] = set()

    def decide(self, now_s: float) -> None:
        """Place replacement pods, run the scheduler, and apply its decisions.

        A full cycle over all pods runs when it is due; otherwise the scheduler decides about newly submitted pods only.
        """
        store = self._store
        self._unprotect(now_s)
        scheduler = store.scheduler
        for replacement, start in self._relocations.place_replacements(now_s):
            self.apply_start(replacement, start)
        newcomers = store.take_newcomers()
        due = scheduler.due(now_s)
        decided = scheduler.cycle(now_s) if due else scheduler.decide(newcomers, now_s) if newcomers else ()
        for decision in decided:
            entry = store.entries.get(decision.id)
            if entry is None:
                continue
            if isinstance(decision, StartBundle):
                self.apply_start(entry, decision)
            elif isinstance(decision, MoveBundle):
                self._apply_move(entry, decision, now_s)
            elif isinstance(decision, Stop):
                self._apply_stop(entry, decision)
            elif isinstance(decision, Wait):
                note = self._pods.requests.budgets.protected_victims_note(store, entry)
                said = (_text_of(entry, decision.explanation), _unready(store), note, member_note(store, entry))
                store.actions.set_reason(entry, decision.reason, joined("", said))
        self._release_broken_gangs()

    def apply_start(self, entry: PodEntry, start: StartBundle) -> None:
        """Set the plan of a pod to which the scheduler assigned devices, and release the pod.

        If evicted pods still hold some of the devices, only the node is nominated; the pod is released when they end.
        """
        store = self._store
        plan = plan_of(entry, start, store.new_id())
        store.set_plan(entry, plan)
        if self._waits_for_others(entry, plan):
            store.actions.add(Nominate(pod=entry.pod, node=plan.node))
        else:
            self.release(entry, PodEvent.ASSIGNED)

    def apply_replan(self, entry: PodEntry, start: StartBundle) -> bool:
        """Replace the plan of a released pod; the new plan is written together with the binding.

        Returns True if the pod may be bound at once, False if evicted pods still hold some of the devices.
        """
        plan = plan_of(entry, start, self._store.new_id())
        self._store.set_plan(entry, plan)
        if self._waits_for_others(entry, plan):
            return False
        return self._store.advance(entry, PodEvent.REASSIGNED)

    def pod_deleted(self, uid: str) -> None:
        """Release the pods that were waiting only for the deleted pod to free its devices."""
        for entry in self._store.take_unblocked(uid):
            self.release(entry, PodEvent.DEVICES_FREED)

    def plan_written(self, uid: str, plan_id: str, *, ok: bool) -> None:
        """Record the result of writing a plan. A failed write is repeated unless the pod has another plan by now."""
        entry = self._store.entries.get(uid)
        if entry is None:
            return
        if ok:
            self._store.set_written(entry, plan_id)
        if entry.plan is None or entry.plan.id != plan_id or entry.stage is not Stage.RELEASING:
            return
        if ok:
            self._store.advance(entry, PodEvent.PLAN_WRITTEN)
            self._store.actions.set_reason(entry, None, f"planned on {entry.plan.node}")
        else:
            self._store.actions.add(
                ReleasePod(pod=entry.pod, plan=entry.plan, nodes=self._candidate_nodes(entry, entry.plan))
            )

    def write_refused(self, action: Action, message: str, now_s: float) -> None:
        """Handle a write that the API server refused: cancel a refused eviction, else withdraw the pod's plan.

        The pod is planned again when it changes, or after a delay.
        """
        store = self._store
        entry = store.entries.get(action.pod.uid)
        if isinstance(action, EvictPod):
            self.eviction_refused(action.pod.uid, message, now_s)
        elif entry is None or not still_wanted(entry, action) or entry.stage not in _STAGES_OF_WRITES[type(action)]:
            return
        else:
            what = "the pod without its gate" if isinstance(action, UngatePod) else "its plan"
            self.withdraw_refused(entry, what, message, now_s)

    def binding_refused(self, uid: str, plan_id: str, message: str, now_s: float) -> None:
        """Withdraw the plan of a pod whose binding the API server refused; the pod is planned again later."""
        entry = self._store.entries.get(uid)
        if entry is not None and entry.stage is Stage.RELEASED and entry.plan is not None and entry.plan.id == plan_id:
            self.withdraw_refused(entry, "its binding", message, now_s)

    def withdraw_refused(self, entry: PodEntry, what: str, message: str, now_s: float) -> None:
        """Withdraw the plan of a pod for which the API server refuses a write, and defer the pod.

        Args:
            what: object of the refused write, for the explanation, such as "its plan".
            message: the API server's message.
        """
        store = self._store
        store.deferrals.defer(
            entry.facts.uid, now_s, first_s=REFUSED_FIRST_S, max_s=REFUSED_MAX_S, early=EarlyEnd.CHANGED
        )
        text = f"the API server refuses {what}: {message}; hint: {REFUSED_HINT}"
        store.withdraw_plan(entry, PodEvent.WRITE_REFUSED, Reason.WRITE_REFUSED, text)

    def eviction_refused(self, uid: str, message: str, now_s: float) -> None:
        """Cancel an eviction that a disruption budget refused.

        The victim holds its devices again and is protected for PROTECTED_S seconds. The pods that were planned on its
        devices lose their plans and wait in their queues again.
        """
        store = self._store
        victim = store.entries.get(uid)
        if victim is None or victim.stage is not Stage.EVICTED:
            return
        for entry in store.waiting_for(uid):
            self._pods.wait_again(entry)
            store.actions.set_reason(entry, Reason.NO_CAPACITY, _kept_text(victim.pod, entry.pod.namespace, message))
        self._relocations.eviction_refused(uid)
        store.advance(victim, PodEvent.EVICTION_REFUSED)
        store.protect(victim, now_s + PROTECTED_S)
        self._protected.add(uid)
        self._pods.adopt(victim, victim.plan, now_s)

    def release(self, entry: PodEntry, event: PodEvent) -> None:
        """Apply an event that sets the stage RELEASING: the plan is written and the pod's gate is removed."""
        assert entry.plan is not None
        self._store.release(entry, event, self._candidate_nodes(entry, entry.plan))
        if entry.reason is not Reason.WRITE_REFUSED:  # else it is reported when the plan is written
            self._store.actions.set_reason(entry, None, f"planned on {entry.plan.node}")

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _candidate_nodes(self, entry: PodEntry, plan: PodPlan) -> tuple[str, ...]:
        """Return the candidate nodes of a pod whose scheduler does not ask the planner; empty for other pods."""
        return () if entry.facts.uses_our_scheduler else alternatives(self._store, entry, plan.node)

    def _waits_for_others(self, entry: PodEntry, plan: PodPlan) -> bool:
        """Return True if evicted pods still hold some of the planned devices; in that case report ASSIGNED_BUSY."""
        store = self._store
        devices = devices_of(plan)
        leaving = [store.entries[uid] for uid in store.on_node.get(plan.node, ())]
        after = frozenset(
            other.facts.uid
            for other in leaving
            if other.stage is Stage.EVICTED
            and other.plan is not None
            and not devices.isdisjoint(devices_of(other.plan))
        )
        if not after:
            return False
        store.wait_for_devices(entry, after)
        pods = pod_references(store.entries[a].pod for a in after)
        moved = any(uid in self._relocations for uid in after)
        what = Message("{pods}, moved to make room for it,", pods=pods) if moved else pods
        reason = Reason.WAITS_FOR_MOVE if moved else Reason.NO_CAPACITY
        message = Message("planned on {node}, and waits for {pods} to end there", node=plan.node, pods=what)
        store.actions.set_reason(entry, reason, message)
        return True

    def _apply_move(self, entry: PodEntry, move: MoveBundle, now_s: float) -> None:
        """Evict a pod that the scheduler moves, and reserve its new placement for the replacement pod."""
        kept = self._relocations.reserve(entry, now_s)
        if entry.stage is Stage.EVICTED:
            return  # moved twice in one cycle
        where = (
            f"to {kept.node}, where devices are reserved for the pod that its controller creates instead"
            if kept
            else "away"
        )
        message = Message(
            "moved from {node} {where}, to make room for {by}", node=entry.node, where=where, by=self._pod(move.by)
        )
        self._evict(entry, Reason.MOVED, message)

    def _evict(self, entry: PodEntry, reason: Reason, message: Text, *, owed: bool = False) -> None:
        """Request the eviction of a pod and of the other pods that use its claims.

        All must be evicted, because the devices of a claim are free only when no pod uses it. ``owed``: the devices are
        borrowed and reclaimed, so a disruption budget that refuses is overruled.
        """
        grace_s = self._pods.requests.eviction_grace_s(entry)
        text = self._store.actions.text_for(entry.pod, message)
        action = EvictPod(pod=entry.pod, reason=reason, message=text, grace_max_s=grace_s, owed=owed)
        self._store.evict(entry, action)
        _evict_sharers(self._store, entry, reason, message, grace_s=grace_s, owed=owed)

    def _pod(self, uid: str) -> PodReference:
        entry = self._store.entries.get(uid)
        return pod_reference(entry.pod if entry is not None else None)

    def _apply_stop(self, entry: PodEntry, stop: Stop) -> None:
        """Evict a victim that is bound or has allocated claims; any other victim loses its plan and waits again."""
        store = self._store
        by = self._pod(stop.by)
        if entry.stage in SETTLED or store.claims.has_allocated(entry.facts.uid):
            store.scheduler.finished(entry.id)  # its replacement is another pod
            if entry.stage is not Stage.EVICTED:  # else it was moved in the same cycle
                message = Message(
                    "evicted from {node} for {by} ({reason})", node=entry.node, by=by, reason=stop.reason.value
                )
                self._evict(entry, stop.reason, message, owed=stop.owed)
        else:
            store.set_waiting(entry, is_decided=True)
            message = Message("its planned devices went to {by} before it started", by=by)
            store.actions.set_reason(entry, stop.reason, message)

    def _release_broken_gangs(self) -> None:
        """Withdraw all plans of gangs that lost a member's plan and are now short of planned members.

        Without this the other members would hold devices although the gang cannot start.
        """
        store = self._store
        for gang in store.take_broken_gangs():
            members = [store.entries[uid] for uid in sorted(store.permits.members(gang))]
            placed = [e for e in members if e.stage in UNBOUND]
            riders = sum(e.facts.rides for e in members)
            _, needed = store.permits.progress(gang)
            if store.permits.has_bound_member(gang) or len(placed) + riders >= needed:
                continue
            for entry in placed:
                if not store.claims.has_allocated(entry.facts.uid):
                    store.refuse_held_binding(entry, f"gang {gang[1]} lost planned devices")
                    self._pods.wait_again(entry)
                elif entry.facts.is_recreated:  # its allocated devices are given to no other pod
                    store.scheduler.finished(entry.id)
                    self._evict(
                        entry, Reason.GANG_INCOMPLETE, f"gang {gang[1]} lost planned devices, and others need the rest"
                    )
        store.take_broken_gangs()  # the plans withdrawn above

    def _unprotect(self, now_s: float) -> None:
        """Make pods evictable again whose protection after a refused eviction has ended."""
        store = self._store
        for uid in list(self._protected):
            entry = store.entries.get(uid)
            if entry is None:
                self._protected.discard(uid)
            elif entry.protected_until_s <= now_s:
                self._protected.discard(uid)
                if entry.stage is Stage.BOUND and store.scheduler.holds(entry.id):
                    store.scheduler.unbind(entry.id)
                    store.scheduler.finished(entry.id)
                    self._pods.adopt(entry, entry.plan, now_s)


def _evict_sharers(
    store: PodStore, entry: PodEntry, reason: Reason, message: Text, *, grace_s: int, owed: bool
) -> None:
    for uid in store.claims.sharers(entry.facts.uid):
        other = store.entries.get(uid)
        if other is not None and other.stage is not Stage.EVICTED and (other.facts.node or other.facts.rides):
            both = Message("{eviction}; it uses claims of {pod}", eviction=message, pod=pod_reference(entry.pod))
            text = store.actions.text_for(other.pod, both)
            store.evict(other, EvictPod(pod=other.pod, reason=reason, message=text, grace_max_s=grace_s, owed=owed))


def _unready(store: PodStore) -> str:
    """Return a sentence with the number of nodes that get no pods now, and why one of them does not; "" for none."""
    names = store.unready
    return f". {len(names)} nodes get no pods now: {names[min(names)]}" if names else ""


def still_wanted(entry: PodEntry, action: Action) -> bool:
    """Return True if a queued action still matches the pod's present plan, node and waiting reason."""
    match action:
        case ReleasePod():
            return entry.plan is not None and entry.plan.id == action.plan.id and not entry.facts.node
        case WritePlan():
            return entry.plan is not None and entry.plan.id == action.plan.id and entry.facts.node == action.plan.node
        case Nominate():
            return entry.plan is not None and entry.plan.node == action.node and not entry.facts.node
        case Report():
            return entry.reason is action.reason and not entry.facts.leaving
    return True


def plan_of(entry: PodEntry, start: StartBundle, plan_id: str) -> PodPlan:
    """Return the plan for a pod that the scheduler starts, in the form that is written to the pod's annotation."""
    assert entry.bundle is not None
    return PodPlan(
        id=plan_id,
        pod_uid=entry.facts.uid,
        node=start.node,
        containers=tuple(
            PlannedContainer(
                name=part.name,
                mode=placement.mode,
                policy=part.request.policy,
                slices=tuple(PlannedSlice.from_slice(part) for part in placement.slices),
            )
            for part, placement in zip(entry.bundle.parts, start.placements, strict=True)
        ),
    )


def _kept_text(victim: PodName, reader: str, message: str) -> Message:
    """Return the explanation of a refused eviction for users of the namespace ``reader``.

    The API server's message names the victim's disruption budget. Users of other namespaces get a text without it.
    """
    template, pod = "{pod} may not be evicted now: {why}", pod_reference(victim)
    if victim.namespace == reader:
        return Message(template, pod=pod, why=message)
    return Message(template, pod=pod, why=budget_reference(victim.namespace, ""))


def _text_of(entry: PodEntry, explanation: Explanation) -> Text:
    """Return an explanation in one line: which amounts are missing, the effect of past use, and which change would help.

    If the pod names no device models, every suitable model was considered already, so the suggestion to choose another
    model is left out.
    """
    assert entry.bundle is not None
    chose_models = bool(entry.bundle.request.selector.models)
    causes = (Message("{nodes}: {cause}", nodes=cause.nodes, cause=cause.text) for cause in explanation.causes[:3])
    helps = [change for change in explanation.changes if chose_models or not _suggests_another_model(change)]
    hint = Message("hint: {changes}", changes=joined("; ", helps[:2])) if helps else ""
    return joined(". ", (explanation.summary, explanation.past_use, joined("; ", causes), hint))


def _suggests_another_model(change: Text) -> bool:
    return isinstance(change, Message) and change.template == OTHER_MODEL
