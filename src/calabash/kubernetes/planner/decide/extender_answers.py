"""What kube-scheduler is answered: which node a pod may go to, whom it may preempt, and when it is bound.

Theory of operation. kube-scheduler knows CPU, affinity, taints and volumes; the book knows devices. A pod may go where
its plan says and nowhere else. When the planned node is not among those that kube-scheduler still offers, the plan
cannot be kept, and it is made anew within the offer, at once and before the answer: the devices are held from then on,
and the same question asked again gets the same answer. The nominated node is offered alone first; an offer of one that is
only an old nomination is refused once, so that a plan that was changed is not changed back for want of a look at the rest.

kube-scheduler does not count the kubelets' device IDs (``schedulerconfig``). So a planned node whose kubelet offers none
now, as while its agent is replaced, is refused here; the plan stays, and is given back if that lasts (``unused``). A binding
that is held for its gang when that happens stays held until the kubelet offers device IDs again or the hold ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from calabash.binder.cluster.upkeep import rebind
from calabash.kubernetes.objects.names import GPUS
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.planner.decide.decisions import Decisions
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.gang_permits import GangName
from calabash.kubernetes.planner.state.store import UNBOUND, Book, Entry, Stage

UNKNOWN = "the planner does not know this pod yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterAnswer:
    """The one node that it may go to; None with one ``text`` for all that were offered, or (``anywhere``) without."""

    node: str | None
    text: str = ""
    anywhere: bool = False


class BindVerdict(StrEnum):
    """GO: bind it now. HOLD: its gang is not complete, wait. DONE: it is bound there already. REFUSE: not there, not now."""

    GO = "go"
    HOLD = "hold"
    DONE = "done"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class BindAnswer:
    """``plan`` is what must stand in the annotation before the binding; ``written`` whether it does."""

    verdict: BindVerdict
    text: str = ""
    plan: PodPlan | None = None
    written: bool = False


class Answers:
    """See the module's description."""

    def __init__(self, book: Book, decisions: Decisions) -> None:
        self._book = book
        self._decisions = decisions
        self._let_go: set[str] = set()

    # ---- filter and preempt ---------------------------------------------------------------------------------------

    def planned(self, uid: str) -> str | None:
        """The node of a pod that may go there now; needs no lock, because it only looks up one entry and its node."""
        entry = self._book.entries.get(uid)
        if entry is None or entry.plan is None or entry.stage in (Stage.PLACED, Stage.EVICTED):
            return None
        if entry.plan.node in self._book.unready:
            return None
        entry.asked = True
        return entry.plan.node

    def filter(self, uid: str, offered: Sequence[str], nominated: str, now_s: float) -> FilterAnswer:
        """Where it may go of what is offered. Its claims are allocated between this answer and the question of its binding, or
        not at all: then it is asked again."""
        answer = self._filtered(uid, offered, nominated, now_s)
        self._book.allocating.pop(uid, None)
        if answer.node is not None:
            entry = self._book.entries[uid]
            entry.asked = True
            if entry.facts.by_claims:
                self._book.allocating[uid] = answer.node
        return answer

    def preempt(self, uid: str, offered: Collection[str]) -> list[str]:
        """Nodes on which kube-scheduler may stop others for it: the planned one."""
        node = self.planned(uid)
        return [node] if node is not None and node in offered else []

    # ---- bind -----------------------------------------------------------------------------------------------------

    def bind(self, uid: str, node: str, now_s: float) -> BindAnswer:
        """Whether it may be bound there now. Asked again by who waits, after ``let_go`` named it."""
        self._book.allocating.pop(uid, None)
        entry = self._book.entries.get(uid)
        if entry is None:
            return BindAnswer(verdict=BindVerdict.REFUSE, text=UNKNOWN)
        if entry.facts.node:
            done = entry.facts.node == node
            verdict = BindVerdict.DONE if done else BindVerdict.REFUSE
            return BindAnswer(verdict=verdict, text="" if done else f"it is bound to {entry.facts.node}")
        riding = entry.stage is Stage.RIDING
        if not riding and (
            entry.plan is None or entry.stage in (Stage.PLACED, Stage.EVICTED) or entry.plan.node != node
        ):
            planned = entry.plan.node if entry.plan else "nowhere yet"
            return BindAnswer(verdict=BindVerdict.REFUSE, text=f"its plan is for {planned}")
        if entry.gang is not None and entry.stage is not Stage.BINDING and uid not in self._let_go:
            self._let_go.update(self._book.permits.arrive(uid, entry.gang, now_s))
            if uid not in self._let_go:
                there, needed = self._book.permits.missing(entry.gang)
                text = f"gang {entry.gang[1]}: {there} of {needed} members are ready to be bound"
                return BindAnswer(verdict=BindVerdict.HOLD, text=text)
        self._let_go.discard(uid)
        if entry.stage in UNBOUND and node in self._book.unready:
            if entry.gang is not None:
                self._book.permits.give_up(uid, entry.gang)
            return BindAnswer(verdict=BindVerdict.REFUSE, text=_no_device_ids(node))
        if not riding:
            entry.stage = Stage.BINDING
        if entry.gang is not None:
            self._book.permits.bound(uid, entry.gang)
        plan = None if riding else entry.plan
        return BindAnswer(verdict=BindVerdict.GO, plan=plan, written=entry.is_written)

    def let_go(self) -> list[str]:
        """Those whose gang has become complete and who have not been told."""
        return list(self._let_go)

    def complete(self) -> list[str]:
        """Return the pods whose held bindings may be written now; some were held for want of device IDs on a node."""
        self._let_go.update(self._book.permits.complete())
        return self.let_go()

    def given_up(self, uid: str) -> None:
        """Nobody waits for its binding any more."""
        entry = self._book.entries.get(uid)
        self._let_go.discard(uid)
        if entry is not None and entry.gang is not None and entry.stage is not Stage.BINDING:
            self._book.permits.give_up(uid, entry.gang)

    def bound(self, uid: str, plan_id: str, *, ok: bool) -> None:
        """The binding was written, or was refused by the API server."""
        entry = self._book.entries.get(uid)
        if entry is None or entry.stage is not Stage.BINDING:
            return
        if ok:
            entry.written = plan_id
            entry.stage = Stage.BOUND
        else:
            entry.stage = Stage.RELEASED
            if entry.gang is not None:
                self._book.permits.unbound(uid, entry.gang)

    def expired(self, now_s: float) -> list[tuple[str, str]]:
        """Return the pods whose binding was held and does not come, because their gang was not complete in time or lost a
        plan, with the text that refuses them."""
        refused, self._book.refusals = self._book.refusals, []
        over: dict[GangName, list[str]] = {}
        for uid in self._book.permits.expired(now_s):
            self._let_go.discard(uid)
            entry = self._book.entries.get(uid)
            if entry is not None and entry.gang is not None:
                over.setdefault(entry.gang, []).append(uid)
        for gang, members in over.items():
            refused += [(uid, self._why_incomplete(gang, members)) for uid in members]
        return refused

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _filtered(self, uid: str, offered: Sequence[str], nominated: str, now_s: float) -> FilterAnswer:
        entry = self._book.entries.get(uid)
        if entry is None or entry.stage is Stage.RIDING:
            return FilterAnswer(node=None, text=UNKNOWN, anywhere=entry is not None)
        if entry.plan is None or entry.stage is Stage.PLACED or entry.stage is Stage.EVICTED:
            if offered:
                self._book.deferrals.asked(uid)
            return FilterAnswer(node=None, text=entry.told[1] or "it waits for devices")
        planned = entry.plan.node
        if planned in offered:
            unready = planned in self._book.unready and entry.stage in UNBOUND
            text = _no_device_ids(planned) if unready else ""
            return FilterAnswer(node=None if unready else planned, text=text)
        if entry.stage not in UNBOUND or is_allocated(entry.plan):
            why = "it is being bound to" if entry.stage not in UNBOUND else "its claims are allocated on"
            return FilterAnswer(node=None, text=f"{why} {planned}")
        if len(offered) == 1 and offered[0] == nominated and not entry.stale_refused:
            entry.stale_refused = True
            return FilterAnswer(node=None, text=f"its plan is for {planned}")
        return self._planned_anew(entry, offered, now_s)

    def _why_incomplete(self, gang: GangName, members: Collection[str]) -> str:
        """Return why members of a gang could not be bound in time."""
        there, needed = self._book.permits.missing(gang)
        without = sorted({self._book.entries[uid].node for uid in self._book.kept_out(members)})
        if without:
            return f"gang {gang[1]}: members could not be bound in time, because {_no_device_ids(without[0])}"
        return f"gang {gang[1]}: only {there} of {needed} members could be bound in time"

    def _planned_anew(self, entry: Entry, offered: Sequence[str], now_s: float) -> FilterAnswer:
        book = self._book
        before = entry.plan.node if entry.plan else ""
        start = rebind(book.scheduler, entry.id, offered, now_s)
        if start is None:
            book.wait(entry)
            count = len(offered)
            return FilterAnswer(node=None, text=f"{before} cannot take it, and of {count} others none has the devices")
        if not self._decisions.planned_anew(entry, start):
            return FilterAnswer(node=None, text=entry.told[1])
        return FilterAnswer(node=start.node)


def _no_device_ids(node: str) -> str:
    return f"the kubelet of {node} offers no {GPUS} now"
