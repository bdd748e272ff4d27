"""Allocated claims: replace planned devices by those that Kubernetes allocated.

Theory of operation. The planner chooses a pod's node, and reserves devices there until the pod's claims are allocated.
Kubernetes' own allocator then chooses the devices of the node, possibly others than the reserved ones. From then on the
pod holds the allocated devices. Unbound pods that were planned on them get other devices, on the same node if possible.
The planner cannot refuse an allocation. If its devices are not free according to the store, or if its pod is unknown,
the allocation is counted as unmanaged memory (``Nodes``).

A deleted pod holds its devices until its claims are free, because the allocator gives them to no other pod before.
"""

from __future__ import annotations

from calabash.binder.cluster.upkeep import start_on
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.planner.decide.decisions import Decisions
from calabash.kubernetes.planner.decide.pods import Pods
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.pod_entry import PodEntry, devices_of
from calabash.kubernetes.planner.state.pod_lifecycle import SETTLED, UNBOUND, PodEvent, Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.errors import CalabashError


class AllocatedClaims:
    """Handler of pods whose claims are allocated; see the module's description."""

    def __init__(self, store: PodStore, pods: Pods, decisions: Decisions) -> None:
        self._store = store
        self._pods = pods
        self._decisions = decisions
        self._deleted_holders: set[str] = set()  # deleted pods that hold claims which are not free

    # ---- pods -----------------------------------------------------------------------------------------------------

    def pod_changed(self, entry: PodEntry, now_s: float) -> None:
        """Assign the pod its allocated devices, and plan other pods again that were planned on these devices.

        Does nothing if some of the pod's claims are not allocated, or if the pod has these devices already.
        """
        store, plan = self._store, entry.facts.plan
        if plan is None or not is_allocated(plan) or entry.stage is Stage.EVICTED or entry.facts.leaving:
            return
        holds = store.scheduler.holds(entry.id)
        if holds and entry.plan is not None and entry.plan.id == plan.id:
            return
        moved = self._assign(entry, plan, now_s)
        if entry.facts.gated and entry.stage not in SETTLED:
            self._decisions.release(entry, PodEvent.CLAIMS_ALLOCATED_GATED)
        else:
            store.advance(entry, PodEvent.CLAIMS_ALLOCATED)
        for other in moved:
            self._replan(other, plan.node, now_s)

    def keep_deleted(self, uid: str) -> bool:
        """Return True if a deleted pod stays in the store, because its claims are still allocated to it alone."""
        store, entry = self._store, self._store.entries.get(uid)
        held = entry is not None and (entry.stage is Stage.EVICTED or store.scheduler.holds(entry.id))
        if (
            not held
            or entry is None
            or entry.stage not in SETTLED
            or not store.claims.has_allocated(uid)
            or store.claims.sharers(uid)
        ):
            self._deleted_holders.discard(uid)
            return False
        self._deleted_holders.add(uid)
        return True

    def take_freed(self) -> list[str]:
        """Return and forget the UIDs of deleted pods that were kept, and whose claims are free now."""
        return [uid for uid in sorted(self._deleted_holders) if not self.keep_deleted(uid)]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _assign(self, entry: PodEntry, plan: PodPlan, now_s: float) -> list[PodEntry]:
        """Assign the devices of the plan to the pod; return the other pods whose plans on these devices are lost."""
        store = self._store
        store.cancel(entry)
        moved: list[PodEntry] = []
        if not self._pods.requests.set_bundle(entry) or entry.bundle is None:
            store.set_plan(entry, plan)
            return moved
        if not self._pods.adopt(entry, plan, now_s):
            moved = [other for other in self._planned_there(plan) if other is not entry]
            for other in moved:
                store.scheduler.finished(other.id)
            if not self._pods.adopt(entry, plan, now_s):
                store.set_plan(entry, plan)  # counted as unmanaged memory
        return moved

    def _planned_there(self, plan: PodPlan) -> list[PodEntry]:
        """Return the unbound pods without allocated claims that are planned on devices of ``plan``."""
        devices = devices_of(plan)
        on_it = [self._store.entries[uid] for uid in sorted(self._store.on_node.get(plan.node, ()))]
        return [
            other
            for other in on_it
            if other.stage in UNBOUND
            and other.plan is not None
            and not is_allocated(other.plan)
            and not devices.isdisjoint(devices_of(other.plan))
        ]

    def _replan(self, other: PodEntry, node: str, now_s: float) -> None:
        """Plan a pod on other devices of its node; if there are none, submit it again."""
        store = self._store
        try:
            start = start_on(store.scheduler, self._pods.requests.bundle_request(other, now_s), [node], now_s)
        except CalabashError:
            start = None
        if start is None:
            store.set_plan(other, None)
            self._pods.submit(other)
        elif other.stage is Stage.RELEASED:
            self._decisions.apply_replan(other, start)
        else:
            self._decisions.apply_start(other, start)
