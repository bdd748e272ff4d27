"""Withdraw plans that kube-scheduler does not use.

Theory of operation. The planner knows devices; kube-scheduler knows CPU, volumes, affinity and the rest. A pod that
kube-scheduler refuses (a volume claim that does not exist, a node selector that matches nothing) would hold its planned
devices for as long as it waits. So a plan is withdrawn when kube-scheduler has refused its pod for ``refused_s``, and
when the pod was not bound within ``unbound_s``, whatever the cause. The pod is then deferred (``deferrals``) and
planned again later. If the pod belongs to a gang without a bound member, all members of the gang lose their plans.

Three cases differ:

* The condition with the refusal may be older than the plan, because kube-scheduler does not write it again. A pod for
  which kube-scheduler has since found nodes therefore gets more time: ``ASKED_FACTOR`` times ``refused_s``.
* A pod whose binding is held for its gang does not count as refused, whatever its condition says.
* If the planned devices are allocated to the pod's claims, the plan stays, because the planner cannot free them.
"""

from __future__ import annotations

from dataclasses import dataclass

from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.deferrals import EarlyEnd
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import PodEvent, Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.errors import Reason

REFUSED_S = 10.0
UNBOUND_S = 300.0
DELAY_MAX_S = 300.0
ASKED_FACTOR = 6.0


@dataclass(slots=True)
class _Watched:
    plan_id: str
    since_s: float
    refused_at_s: float | None = None


class UnusedPlans:
    """Withdraws plans of unbound pods after time limits; see the module's description.

    Args:
        refused_s: seconds for which kube-scheduler may refuse a pod before its plan is withdrawn; also the first delay
            before the pod is planned again.
        unbound_s: seconds for which a pod may hold planned devices without being bound.
        delay_max_s: longest delay in seconds before the pod is planned again.
    """

    def __init__(
        self,
        store: PodStore,
        *,
        refused_s: float = REFUSED_S,
        unbound_s: float = UNBOUND_S,
        delay_max_s: float = DELAY_MAX_S,
    ) -> None:
        self._store = store
        self._refused_s = refused_s
        self._unbound_s = unbound_s
        self._delay_max_s = delay_max_s
        self._watched: dict[str, _Watched] = {}

    def withdraw(self, now_s: float) -> None:
        """Withdraw the plans whose time limit is over, and defer their pods."""
        store = self._store
        self._watched = {uid: one for uid, one in self._watched.items() if uid in store.unbound}
        for uid in list(store.unbound):
            entry = store.entries[uid]
            if entry.stage is Stage.RELEASED and entry.plan is not None and not is_allocated(entry.plan):
                why = self._withdrawal_reason(entry, entry.plan.id, now_s)
                if why:
                    self._withdraw_plan(entry, why, now_s)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _withdrawal_reason(self, entry: PodEntry, plan_id: str, now_s: float) -> str:
        """Return why the plan is withdrawn now; "" if it is not."""
        uid = entry.facts.uid
        watched = self._watched.get(uid)
        if watched is None or watched.plan_id != plan_id:
            watched = self._watched[uid] = _Watched(plan_id, now_s)
        held = entry.gang is not None and self._store.permits.holds(uid, entry.gang)
        if not entry.facts.refused or held:
            watched.refused_at_s = None
        elif watched.refused_at_s is None:
            watched.refused_at_s = now_s
        patience_s = self._refused_s * (ASKED_FACTOR if self._store.deferrals.ended_by_kube_scheduler(uid) else 1.0)
        if watched.refused_at_s is not None and now_s >= watched.refused_at_s + patience_s:
            return f"kube-scheduler has refused the pod for {patience_s:g} s (see condition PodScheduled)"
        if now_s >= watched.since_s + self._unbound_s:
            return f"the pod was not bound within {self._unbound_s:g} s"
        return ""

    def _withdraw_plan(self, entry: PodEntry, why: str, now_s: float) -> None:
        store = self._store
        early = EarlyEnd.NEVER if entry.asked else EarlyEnd.ASKED
        node = entry.node
        delay_s = store.deferrals.defer(
            entry.facts.uid, now_s, first_s=self._refused_s, max_s=self._delay_max_s, early=early
        )
        soon = ", or as soon as kube-scheduler finds a node for it" if early is EarlyEnd.ASKED else ""
        text = f"{why}; its planned devices on {node} were released. It is planned again within {delay_s:g} s{soon}"
        store.withdraw_plan(entry, PodEvent.PLAN_UNUSED, Reason.PLAN_UNUSED, text)
