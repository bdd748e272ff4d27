"""Plans that kube-scheduler does not use are given back.

Theory of operation. The planner knows devices; CPU, volumes, affinity and the rest are kube-scheduler's. A pod that
kube-scheduler refuses (a volume claim that does not exist, a node selector that matches nothing) would hold its planned
devices for as long as it waits. So a plan is given back when kube-scheduler has refused its pod for ``refused_s``, and when
the pod was not bound within ``unbound_s``, whatever the cause. The pod is then set aside (``deferrals``), and planned again
later. A gang that has not begun to be bound loses the plans of all its members with that of one.

Three cases need care:

* A refusal may be older than the plan: kube-scheduler does not repeat it. A pod for which kube-scheduler has since found
  nodes therefore gets more time, ``ASKED_FACTOR`` times ``refused_s``.
* A pod whose binding is held for its gang is not refused, whatever its condition says.
* Devices that are allocated to the pod's claims are not the planner's to give to others: such a plan stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.deferrals import EarlyEnd
from calabash.kubernetes.planner.state.store import Book, Entry, Stage
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
    """See the module's description.

    Args:
        refused_s: how long kube-scheduler may refuse a pod that holds planned devices; also the first delay before the
            pod's next plan.
        unbound_s: how long a pod may hold planned devices without being bound.
        delay_max_s: the longest delay before the next plan.
    """

    def __init__(
        self,
        book: Book,
        *,
        refused_s: float = REFUSED_S,
        unbound_s: float = UNBOUND_S,
        delay_max_s: float = DELAY_MAX_S,
    ) -> None:
        self._book = book
        self._refused_s = refused_s
        self._unbound_s = unbound_s
        self._delay_max_s = delay_max_s
        self._watched: dict[str, _Watched] = {}

    def decide(self, now_s: float) -> None:
        """Give back the plans whose time is over."""
        book = self._book
        self._watched = {uid: one for uid, one in self._watched.items() if uid in book.unbound}
        for uid in list(book.unbound):
            entry = book.entries[uid]
            if entry.stage is Stage.RELEASED and entry.plan is not None and not is_allocated(entry.plan):
                why = self._look(entry, entry.plan.id, now_s)
                if why:
                    self._give_back(entry, why, now_s)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _look(self, entry: Entry, plan_id: str, now_s: float) -> str:
        """Return why the plan is given back now; "" where it is not."""
        uid = entry.facts.uid
        watched = self._watched.get(uid)
        if watched is None or watched.plan_id != plan_id:
            watched = self._watched[uid] = _Watched(plan_id, now_s)
        held = entry.gang is not None and self._book.permits.holds(uid, entry.gang)
        if not entry.facts.refused or held:
            watched.refused_at_s = None
        elif watched.refused_at_s is None:
            watched.refused_at_s = now_s
        patience_s = self._refused_s * (ASKED_FACTOR if self._book.deferrals.was_asked(uid) else 1.0)
        if watched.refused_at_s is not None and now_s >= watched.refused_at_s + patience_s:
            return f"kube-scheduler has refused it for {patience_s:g} s (see its condition PodScheduled)"
        if now_s >= watched.since_s + self._unbound_s:
            return f"it was not bound within {self._unbound_s:g} s"
        return ""

    def _give_back(self, entry: Entry, why: str, now_s: float) -> None:
        book = self._book
        early = EarlyEnd.NEVER if entry.asked else EarlyEnd.ASKED
        node = entry.node
        delay_s = book.deferrals.defer(
            entry.facts.uid, now_s, first_s=self._refused_s, max_s=self._delay_max_s, early=early
        )
        soon = ", or as soon as kube-scheduler finds a node for it" if early is EarlyEnd.ASKED else ""
        entry.own_condition = True
        text = f"{why}; its devices on {node} were given back. It is planned again within {delay_s:g} s{soon}"
        book.give_back(entry, Reason.PLAN_UNUSED, text)
