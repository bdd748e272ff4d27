"""Pods whose node somebody else chose: they get their devices there, or are told why not, and never start without.

Theory of operation. Four kinds come here. A pod that was bound past the planner (by hand, or by a scheduler that does not
ask) is planned on its node when that has the room; until then its agent refuses to start it and says what is written in
its condition. A pod that was confined to a few nodes instead (``affinity``) has its plan written once it is bound: that of
the planned node, or one made for the other node to which kube-scheduler gave it; where that has no room any more, the pod
is evicted if its owner makes it again elsewhere. And such a pod that has lost its place before it was bound gets another within
its few nodes. The fourth had its plan, and before it began its agent
gave the devices away whole (``fleet``): it has others on its node, or after a while makes room for one that its owner makes.
All of this is tried again when room may have come.

The limits of its queue, the queues that its namespace may use and the least isolation of its namespace hold for every one of
these pods. A pod that its owner makes again on the same node (a DaemonSet's) is never evicted for want of room, and pods of any
other owner at growing intervals only: else the owner would make the next at once, without end.
"""

from __future__ import annotations

from calabash.binder.cluster.cluster import StartBundle
from calabash.binder.cluster.upkeep import free_text, start_on
from calabash.kubernetes.planner.decide.decisions import plan_of
from calabash.kubernetes.planner.state.affinity import NODES_MAX
from calabash.kubernetes.planner.state.facts import EvictPod, Nominate, WritePlan
from calabash.kubernetes.planner.state.requests import Wishes
from calabash.kubernetes.planner.state.store import UNBOUND, Book, Entry, Stage
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ComputePolicy, GpuRequest

GIVE_UP_S = 10.0  # a node may still tell of devices that it has back
_TRIED_MAX = 64  # of those that wait, at one time; the others are next


class LatePlans:
    """See the module's description."""

    def __init__(self, book: Book, wishes: Wishes) -> None:
        self._book = book
        self._wishes = wishes
        self._version = -1
        self._writing: dict[str, str] = {}
        self._refused_at_s: dict[str, float] = {}
        self._displaced_at_s: dict[str, tuple[float, str]] = {}

    def look(self, entry: Entry, now_s: float) -> None:
        """A pod is otherwise than it was: it may need a plan, or have its plan written."""
        facts, uid = entry.facts, entry.facts.uid
        elsewhere = facts.owner and not facts.tied
        if facts.refused and facts.confined and elsewhere and not (facts.node or facts.leaving):
            self._refused_at_s.setdefault(uid, now_s)
        else:
            self._refused_at_s.pop(uid, None)
        if facts.leaving or entry.bundle is None or facts.gated:
            self._book.late.pop(uid, None)
        elif facts.node:
            self._look_bound(entry)
        elif facts.confined and entry.stage in UNBOUND and entry.node not in facts.confined:
            self._book.scheduler.unbind(entry.id)
            self._book.wait(entry)

    def forget(self, uid: str) -> None:
        self._book.late.pop(uid, None)
        self._writing.pop(uid, None)
        self._refused_at_s.pop(uid, None)
        self._displaced_at_s.pop(uid, None)

    def decide(self, now_s: float) -> None:
        """Try those that wait, when there are new ones or room may have come."""
        self._give_up_refused(now_s)
        self._give_up_displaced(now_s)
        book = self._book
        version = book.scheduler.scheduler.state.version
        if not book.late or (version == self._version and not book.late_news):
            return
        book.late_news = False
        for uid in list(book.late)[:_TRIED_MAX]:
            entry = book.entries.get(uid)
            del book.late[uid]
            if entry is None or entry.bundle is None:
                continue
            book.late[uid] = None  # behind the others
            if entry.facts.node:
                self._plan_bound(entry, now_s)
            else:
                self._plan_confined(entry, now_s)
        self._version = book.scheduler.scheduler.state.version

    # ---- bound ----------------------------------------------------------------------------------------------------

    def _look_bound(self, entry: Entry) -> None:
        book, facts = self._book, entry.facts
        if entry.stage is not Stage.BOUND:
            return
        planned = facts.plan is not None and facts.plan.node == facts.node
        if entry.plan is not None and entry.plan.node == facts.node and book.scheduler.holds(entry.id):
            if not planned:
                self._write(entry)
        elif not planned:
            book.late[facts.uid] = None
            book.late_news = True

    def _plan_bound(self, entry: Entry, now_s: float) -> None:
        book, facts = self._book, entry.facts
        start: StartBundle | None = None
        over = ""
        try:
            start = start_on(book.scheduler, self._wishes.request(entry, now_s), [facts.node], now_s, bound=True)
        except CalabashError as error:
            if error.reason is Reason.QUEUE_OVER_LIMIT:
                over = error.message
            else:
                book.tell(entry, error.reason, f"{error.message}; hint: {error.hint}" if error.hint else error.message)
                return
        if start is not None:
            del book.late[facts.uid]
            self._displaced_at_s.pop(facts.uid, None)
            book.settle(entry, plan_of(entry, start, book.new_id()))
            self._write(entry)
            book.tell(entry, None, f"planned on {facts.node}, to which it was bound")
            return
        why = over or f"it asks for {_asked(entry)}, {free_text(book.scheduler, facts.node)}"
        if not over and facts.node in facts.confined and self._may_evict(entry, now_s):
            self._wishes.shunned.evict(facts.owner or facts.uid, now_s)
            del book.late[facts.uid]
            entry.stage = Stage.EVICTED
            text = f"bound to {facts.node}, which has no room any more ({why}); its owner makes another"
            book.want(self._evicted(entry, text))
            return
        if not over and facts.plan is not None and facts.plan.node == facts.node:
            what = f"its devices on {facts.node} were given to a pod that the planner was not told of, and {why}"
            since_s, _ = self._displaced_at_s.get(facts.uid, (now_s, ""))
            self._displaced_at_s[facts.uid] = since_s, what
            book.tell(entry, Reason.NO_CAPACITY, f"{what}; hint: it starts when there is room")
            return
        hint = "hint: it starts when there is room; or delete it and leave spec.nodeName out"
        reason = Reason.QUEUE_OVER_LIMIT if over else Reason.NO_CAPACITY
        book.tell(entry, reason, f"bound to {facts.node} by others than the planner: {why}; {hint}")

    def _give_up_displaced(self, now_s: float) -> None:
        """There is no other room for it on its node: whoever makes the pod again has one that is planned elsewhere."""
        for uid, (since_s, what) in list(self._displaced_at_s.items()):
            entry = self._book.entries.get(uid)
            if entry is None or uid not in self._book.late:
                del self._displaced_at_s[uid]
            elif now_s >= since_s + GIVE_UP_S and self._may_evict(entry, now_s):
                self._wishes.shunned.evict(entry.facts.owner or uid, now_s)
                self.forget(uid)
                entry.stage = Stage.EVICTED
                text = f"{what}; its owner makes another"
                self._book.want(self._evicted(entry, text))

    def _may_evict(self, entry: Entry, now_s: float) -> bool:
        """Return True if the pod's owner makes another elsewhere, and has not just lost one for the same reason."""
        facts = entry.facts
        return facts.remade and not facts.tied and self._wishes.shunned.may_evict(facts.owner or facts.uid, now_s)

    def _evicted(self, entry: Entry, text: str) -> EvictPod:
        grace_s = self._wishes.eviction_grace_s(entry)
        return EvictPod(pod=entry.pod, reason=Reason.NO_CAPACITY, message=text, grace_max_s=grace_s)

    def _write(self, entry: Entry) -> None:
        assert entry.plan is not None
        if self._writing.get(entry.facts.uid) != entry.plan.id:
            self._writing[entry.facts.uid] = entry.plan.id
            self._book.want(WritePlan(pod=entry.pod, plan=entry.plan))

    # ---- confined to a few nodes ----------------------------------------------------------------------------------

    def _give_up_refused(self, now_s: float) -> None:
        """kube-scheduler has no room on any of the few nodes: whoever makes the pod again has one that is planned elsewhere."""
        book, shunned = self._book, self._wishes.shunned
        for uid, since_s in list(self._refused_at_s.items()):
            entry = book.entries.get(uid)
            if entry is None or now_s < since_s + shunned.patience_s(entry.facts.owner):
                continue
            facts = entry.facts
            self.forget(uid)
            shunned.refuse(facts.owner, facts.confined, now_s)
            book.scheduler.finished(entry.id)
            book.settle(entry, None)
            entry.stage = Stage.EVICTED
            whose = ", ".join(facts.confined)
            text = f"kube-scheduler has no room on {whose}; its owner makes another, which is planned elsewhere"
            book.want(self._evicted(entry, text))

    def _plan_confined(self, entry: Entry, now_s: float) -> None:
        book, facts = self._book, entry.facts
        first = [n for n in (facts.nominated,) if n in facts.confined]
        start: StartBundle | None = None
        try:
            request = self._wishes.request(entry, now_s)
            for nodes in (first, facts.confined):
                start = start or start_on(book.scheduler, request, nodes, now_s)
        except CalabashError as error:
            book.tell(entry, error.reason, error.message)
            return
        if start is None:
            whose = ", ".join(facts.confined[:NODES_MAX])
            text = f"it may go to {whose} only, and none of them has {_asked(entry)} now"
            book.tell(entry, Reason.NO_CAPACITY, text)
            return
        del book.late[facts.uid]
        plan = plan_of(entry, start, book.new_id())
        book.settle(entry, plan)
        entry.stage = Stage.RELEASED
        if facts.nominated != plan.node:
            book.want(Nominate(pod=entry.pod, node=plan.node))


def _asked(entry: Entry) -> str:
    assert entry.bundle is not None
    parts = [part.request for part in entry.bundle.parts]
    return " and ".join(dict.fromkeys(_amount(r) for r in parts))


def _amount(request: GpuRequest) -> str:
    devices = "device" if request.count == 1 else "devices"
    if request.memory_mib is None and request.core_percent == 100:
        return f"{request.count} whole {devices}"
    memory = f"{request.memory_mib} MiB and " if request.memory_mib is not None else ""
    best_effort = request.policy is ComputePolicy.BEST_EFFORT
    compute = "best-effort compute" if best_effort else f"{request.core_percent} %"
    return f"{memory}{compute} of {request.count} {devices}"
