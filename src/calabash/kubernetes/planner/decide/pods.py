"""Events of pods: creation, change, binding, deletion, and the takeover of existing plans after a restart.

Theory of operation. The API server has the actual state of pods; the pod store has the devices that were planned for
them. A pod without a node waits in its queue unless a scheduling gate of another system holds it. A bound pod holds the
devices of its plan, whichever planner wrote the plan. A bound pod without a plan got its devices from the node's agent,
which reports them as slices. A plan that is found in an annotation after a restart is kept if its devices are free.
Members of a gang keep their plans together or not at all: an incomplete gang would hold devices without using them.
"""

from __future__ import annotations

from collections.abc import Iterable

from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.facts import Nominate, PodFacts
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import SETTLED, PodEvent, Stage
from calabash.kubernetes.planner.state.queues import KubeQueues
from calabash.kubernetes.planner.state.requests import SYSTEM_NAMESPACES, PodRequests
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import Placement


class Pods:
    """Handlers of pod events; see the module's description."""

    def __init__(
        self, store: PodStore, queues: KubeQueues, system_namespaces: frozenset[str] = SYSTEM_NAMESPACES
    ) -> None:
        self._store = store
        self.requests = PodRequests(store, queues, system_namespaces)

    # ---- events ---------------------------------------------------------------------------------------------------

    def pod_changed(self, facts: PodFacts, now_s: float) -> None:
        """Insert or update a pod. A finished pod is deleted."""
        store = self._store
        entry = store.entries.get(facts.uid)
        if facts.finished:
            self.pod_deleted(facts.uid)
            return
        if entry is None:
            if facts.leaving and not facts.node:
                return
            entry = store.add(facts)
            if store.started:
                self.add_entry(entry, now_s)
            return
        before = entry.facts
        store.update_facts(entry, facts)
        if store.started:
            self._changed(entry, before, now_s)

    def pod_deleted(self, uid: str) -> None:
        """Delete a pod that does not exist any more or has ended, and free its devices. Ignores an unknown pod."""
        store = self._store
        entry = store.entries.get(uid)
        if entry is None:
            return
        self.requests.pod_deleted(entry)
        store.remove(entry)

    def add_entry(self, entry: PodEntry, now_s: float) -> None:
        """Set the stage of a new pod: a bound pod gets the devices of its plan; any other pod is submitted."""
        facts = entry.facts
        if facts.node:
            self._store.advance(entry, PodEvent.SEEN_BOUND)
            self._set_bundle(entry)
            self.adopt(entry, facts.plan, now_s)
            if entry.gang is not None:
                self._store.permits.set_bound(facts.uid, entry.gang)
        else:
            self.submit(entry)

    def restart(self, entries: Iterable[PodEntry], now_s: float) -> None:
        """Take over existing pods: bound pods first, then the plans of complete gangs, then waiting pods."""
        waiting: list[PodEntry] = []
        planned: dict[object, list[PodEntry]] = {}
        for entry in sorted(entries, key=lambda e: (e.facts.bound_at_s, e.facts.created_at_s, e.facts.uid)):
            if entry.facts.node:
                self.add_entry(entry, now_s)
            elif entry.facts.plan is not None and not (entry.facts.gated or entry.facts.leaving):
                self.requests.set_bundle(entry)
                planned.setdefault(entry.gang or entry.facts.uid, []).append(entry)
            else:
                waiting.append(entry)
                if entry.facts.rides:
                    self.requests.set_bundle(entry)  # its gang counts it
        for members in planned.values():
            self._resume(members, now_s)
        for entry in waiting:
            self.submit(entry)

    # ---- placement ---------------------------------------------------------------------------------------------------

    def submit(self, entry: PodEntry) -> None:
        """Submit the pod to its queue. Does nothing while the pod is deferred.

        A pod that cannot be submitted is set aside with the reason. A pod that needs no devices of its own becomes
        RIDING, if it is in no gang, or its gang starts.
        """
        store, facts = self._store, entry.facts
        if facts.leaving:
            store.set_aside(entry, PodEvent.TERMINATING)
            return
        if facts.held_by_other_gate:
            self._set_aside(entry, Reason.CONFLICT, "another scheduling gate holds the pod")
            return
        if entry.stage is Stage.ASIDE and store.deferrals.is_deferred(facts.uid):
            return
        if not self._set_bundle(entry):
            if facts.rides and not facts.waits_for and entry.stage is not Stage.RIDING:
                self._start_rider(entry)
            return
        if entry.id in store.scheduler.known:
            store.free(entry)
        try:
            store.scheduler.submit(self.requests.bundle_request(entry))
        except CalabashError as error:
            text = f"{error.message}; {error.hint}" if error.hint else error.message
            self._set_aside(entry, error.reason, text)
            return
        store.set_waiting(entry)

    def adopt(self, entry: PodEntry, plan: PodPlan | None, now_s: float) -> bool:
        """Assign the devices of an existing plan to the pod. Its run time counts from the binding if that is known.

        Returns False, and changes nothing, if there is no plan, its devices are not free, or it does not match the pod.
        """
        store = self._store
        bundle = entry.bundle
        if plan is None or bundle is None or (entry.facts.node and entry.facts.node != plan.node):
            return False
        found = [plan.container(part.name) for part in bundle.parts]
        placements: list[Placement] = [c.placement(plan.node) for c in found if c is not None]
        if len(placements) < len(bundle.parts):
            return False
        try:
            started_at_s = min(entry.facts.bound_at_s or now_s, now_s)
            store.scheduler.adopt(self.requests.bundle_request(entry, now_s), placements, started_at_s=started_at_s)
        except CalabashError:
            return False
        store.set_plan(entry, plan)
        store.set_written(entry, plan.id)
        self.requests.mark_movable(entry)
        return True

    def drop_placement(self, entry: PodEntry) -> None:
        """Free the pod's devices in the scheduler, because the node or a device cannot be used any more.

        A bound pod keeps its stage, although no devices are counted for it. Any other pod waits in its queue again.
        """
        store = self._store
        if entry.stage in SETTLED:
            store.scheduler.finished(entry.id)
        elif store.scheduler.holds(entry.id):
            self.wait_again(entry)

    def wait_again(self, entry: PodEntry) -> None:
        """Withdraw the plan of an unbound pod. The pod waits in its queue again, with its old submission time."""
        store = self._store
        if store.scheduler.holds(entry.id):
            store.scheduler.unbind(entry.id)
            store.set_waiting(entry)
        else:  # its devices are not counted, because they were allocated by Kubernetes and were not free
            self.submit(entry)

    def retry_set_aside(self) -> None:
        """Submit all pods again that were set aside, because a queue, node or group they may need has changed."""
        for entry in self._store.aside():
            self._retry(entry)

    def retry_deferred(self, now_s: float) -> None:
        """Submit the pods whose deferral is over, unless they got devices by allocated claims meanwhile."""
        for entry in [self._store.entries[uid] for uid in self._store.deferrals.take_due(now_s)]:
            if entry.stage is Stage.ASIDE:
                self._retry(entry)

    def _retry(self, entry: PodEntry) -> None:
        """Submit an unbound pod again. A bound pod whose request is valid now is added to the unplanned pods."""
        store = self._store
        if not entry.facts.node and entry.stage not in SETTLED:
            self.submit(entry)
        elif entry.facts.leaving or entry.stage not in (Stage.ASIDE, Stage.BOUND):
            store.unlist_aside(entry)
        elif self._set_bundle(entry):
            store.unlist_aside(entry)
            store.advance(entry, PodEvent.SEEN_BOUND)
            if not store.scheduler.holds(entry.id):
                store.unplanned.put(entry.facts.uid)

    def retry_backed_off(self, now_s: float) -> None:
        """Submit waiting pods again when the nodes that were excluded for their controller may be tried again.

        ``node_backoff`` excludes nodes on which kube-scheduler refused pods of a controller.
        """
        owners = set(self.requests.node_backoff.take_expired(now_s))
        for entry in list(self._store.entries.values()) if owners else ():
            if entry.facts.owner in owners and entry.stage is Stage.WAITING and not entry.facts.uses_our_scheduler:
                self._store.scheduler.finished(entry.id)
                self.submit(entry)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _set_bundle(self, entry: PodEntry) -> bool:
        """Set the pod's request for the scheduler (its bundle); return True if the pod has one.

        A pod with an invalid request becomes ASIDE. A pod that needs no devices of its own has no bundle.
        """
        if self.requests.set_bundle(entry):
            return True
        if entry.facts.waits_for or not entry.facts.rides:
            self._store.set_aside(entry, PodEvent.UNPLANNABLE)
        return False

    def _start_rider(self, entry: PodEntry) -> None:
        """Set the stage RIDING, or set a member of a gang aside that has no plan yet."""
        riders = self.requests.waiting_riders
        if entry.facts.member is None or riders.may_start(entry):
            self._store.set_riding(entry)
        elif entry.gang is None:
            self._store.set_aside(entry, PodEvent.UNPLANNABLE)
        else:
            self._set_aside(entry, Reason.GANG_INCOMPLETE, riders.waiting_text(entry))

    def _set_aside(self, entry: PodEntry, reason: Reason, message: str) -> None:
        """Set a pod aside that cannot be planned, and explain why."""
        self._store.set_aside(entry, PodEvent.UNPLANNABLE)
        self._store.list_aside(entry, reason, message)

    def _changed(self, entry: PodEntry, before: PodFacts, now_s: float) -> None:
        store, facts = self._store, entry.facts
        if facts.node:
            if entry.stage not in (Stage.BOUND, Stage.EVICTED):
                self._became_bound(entry, now_s)
        elif facts.leaving:
            if entry.stage in SETTLED:
                return  # its binding may have come first
            store.cancel(entry)
            store.set_aside(entry, PodEvent.TERMINATING)
        elif entry.stage is Stage.ASIDE:
            store.deferrals.pod_changed(facts.uid)
            self.submit(entry)
        elif entry.stage in (Stage.WAITING, Stage.RIDING):
            if _asks(before) != _asks(facts):
                _submit_again(store, self, entry)
        elif entry.plan is not None:
            if facts.plan is not None and facts.plan.id == entry.plan.id and not facts.gated:
                store.set_written(entry, facts.plan.id)
                if entry.stage is Stage.RELEASING:
                    store.advance(entry, PodEvent.PLAN_WRITTEN)
            if facts.refused and not facts.nominated and before.nominated and entry.stage is Stage.RELEASED:
                store.actions.add(
                    Nominate(pod=entry.pod, node=entry.plan.node)
                )  # a failed attempt removed the nomination

    def _became_bound(self, entry: PodEntry, now_s: float) -> None:
        """Set the stage BOUND. If the pod was not bound as planned, the plan in its annotation replaces the store's."""
        store, facts = self._store, entry.facts
        mine = entry.plan
        agreed = mine is not None and mine.node == facts.node and (facts.plan is None or facts.plan.id == mine.id)
        if not agreed:
            store.cancel(entry)
            store.set_plan(entry, None)
            self.requests.set_bundle(entry)
            self.adopt(entry, facts.plan, now_s)
        store.advance(entry, PodEvent.SEEN_BOUND)
        store.deferrals.reset(facts.uid)
        if entry.gang is not None:
            store.permits.set_bound(facts.uid, entry.gang)

    def _resume(self, members: list[PodEntry], now_s: float) -> None:
        """Take over the plans of one pod or gang after a restart, or withdraw all of them if the gang is incomplete."""
        store = self._store
        adopted = [e for e in members if e.bundle is not None and self.adopt(e, e.facts.plan, now_s)]
        gang = members[0].gang
        complete = True
        if gang is not None:
            there, needed = store.permits.progress(gang)
            riders = len(self.requests.riders.get(gang, ()))
            complete = store.permits.has_bound_member(gang) or there + len(adopted) + riders >= needed
        for entry in members:
            if entry.plan is None:
                if entry.bundle is not None:
                    self.submit(entry)
            elif complete or is_allocated(entry.plan):  # allocated devices stay with the pod
                store.advance(entry, PodEvent.PLAN_FOUND)
                if entry.facts.nominated != entry.plan.node:
                    store.actions.add(Nominate(pod=entry.pod, node=entry.plan.node))
            else:
                store.scheduler.unbind(entry.id)
                store.set_waiting(entry)


def _asks(facts: PodFacts) -> tuple[object, ...]:
    """Return the facts that affect a waiting pod's placement; if they change, the pod is submitted again."""
    return (facts.request, facts.constraints, facts.priority, facts.pins, facts.waits_for, facts.rides, facts.member)


def pods_on_node(store: PodStore, node: str) -> list[PodEntry]:
    """Return the pods that are bound to the node or planned for it, in the order of their UIDs."""
    return [store.entries[uid] for uid in sorted(store.on_node.get(node, ()))]


def displace(store: PodStore, entry: PodEntry) -> None:
    """Remove the plan of a bound pod whose devices were given to other pods before it started.

    The pod is added to the queue of unplanned pods.
    """
    uid = entry.facts.uid
    if uid in store.unplanned or entry.bundle is None:
        return
    store.scheduler.finished(entry.id)
    store.set_plan(entry, None)
    store.unplanned.put(uid)


def resubmit_waiting(store: PodStore, pods: Pods) -> None:
    """Submit all waiting pods again, because a device kind was added that may suit them."""
    for entry in [e for e in store.entries.values() if e.stage is Stage.WAITING]:
        _submit_again(store, pods, entry)


def resubmit_resized_gangs(store: PodStore, pods: Pods) -> None:
    """Submit waiting members of a gang again if the number of its members without devices has changed.

    The scheduler does not wait for members that request no devices of their own (stage RIDING).
    """
    for gang in pods.requests.take_resized_gangs():
        for uid in sorted(store.permits.members(gang)):
            if store.entries[uid].stage is Stage.WAITING:
                _submit_again(store, pods, store.entries[uid])


def start_ready_riders(pods: Pods) -> None:
    """Submit the members without devices again that wait for the plans of their gangs."""
    for entry in pods.requests.waiting_riders.take_ready():
        pods.submit(entry)


def _submit_again(store: PodStore, pods: Pods, entry: PodEntry) -> None:
    """Submit a waiting pod again, because its request or the known kinds of devices have changed."""
    store.cancel(entry)
    pods.submit(entry)
