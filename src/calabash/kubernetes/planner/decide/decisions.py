"""What the scheduler decided becomes what is to be done.

Theory of operation. A start whose devices are free is released at once; one that takes the devices of others waits until
these are gone. Who has not begun loses its plan by a word here; who is bound is evicted by the API server, which asks the
disruption budgets. Who is moved is evicted as well, while its new place is kept (``heirs``). Where a budget refuses, the
decision is taken back as a whole: the victim holds its devices again and is not asked again for a while, and who was to
have them waits.
"""

from __future__ import annotations

from calabash.binder.cluster.cluster import MoveBundle, StartBundle
from calabash.binder.local.machine import Stop, Wait
from calabash.kubernetes.objects.names import GPUS
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.visibility import budget_mention, pod_mention, pod_mentions
from calabash.kubernetes.planner.decide.pods import Pods
from calabash.kubernetes.planner.decide.relocations import Heirs
from calabash.kubernetes.planner.state.affinity import alternatives
from calabash.kubernetes.planner.state.deferrals import EarlyEnd
from calabash.kubernetes.planner.state.facts import (
    Action,
    EvictPod,
    Nominate,
    ReleasePod,
    Report,
    UngatePod,
    WritePlan,
)
from calabash.kubernetes.planner.state.store import SETTLED, UNBOUND, Book, Entry, Stage, devices_of
from calabash.model.errors import Reason
from calabash.sched import OTHER_MODEL, Explanation

PROTECTED_S = 60.0
REFUSED_FIRST_S, REFUSED_MAX_S = 30.0, 600.0  # waits of a pod for which the API server refused a write
REFUSED_HINT = "the pod is planned again when it changes: remove what the message names, for example large annotations"


class Decisions:
    """See the module's description."""

    def __init__(self, book: Book, pods: Pods, heirs: Heirs) -> None:
        self._book = book
        self._pods = pods
        self._heirs = heirs
        self._protected: set[str] = set()

    def decide(self, now_s: float) -> None:
        """Decide everything that can be decided now."""
        book = self._book
        self._unprotect(now_s)
        scheduler = book.scheduler
        for heir, kept in self._heirs.decide(now_s):
            self.started(heir, kept)
        newcomers, book.newcomers = book.newcomers, {}
        due = scheduler.due(now_s)
        decided = scheduler.cycle(now_s) if due else scheduler.decide(newcomers, now_s) if newcomers else ()
        for decision in decided:
            entry = book.entries.get(decision.id)
            if entry is None:
                continue
            if isinstance(decision, StartBundle):
                self.started(entry, decision)
            elif isinstance(decision, MoveBundle):
                self._moved(entry, decision, now_s)
            elif isinstance(decision, Stop):
                self._stopped(entry, decision)
            elif isinstance(decision, Wait):
                note = self._pods.wishes.budgets.note(book, entry)
                book.tell(entry, decision.reason, _told(book, entry, decision.explanation) + _unready(book) + note)
        self._give_up_halves()

    def started(self, entry: Entry, start: StartBundle) -> None:
        """It has its devices: release it, or wait for those who must leave them."""
        book = self._book
        plan = plan_of(entry, start, book.new_id())
        book.settle(entry, plan)
        entry.stale_refused = False
        if self._waits_for_others(entry, plan):
            book.want(Nominate(pod=entry.pod, node=plan.node))
        else:
            self.release(entry)

    def planned_anew(self, entry: Entry, start: StartBundle) -> bool:
        """It goes elsewhere than it was to, and whether it may do so at once; its annotation is written with its binding."""
        plan = plan_of(entry, start, self._book.new_id())
        self._book.settle(entry, plan)
        entry.stale_refused = False
        if self._waits_for_others(entry, plan):
            return False
        entry.stage = Stage.RELEASED
        return True

    def gone(self, uid: str) -> None:
        """Somebody is gone; who waited for no one else goes on."""
        for name in list(self._book.placed):
            entry = self._book.entries[name]
            entry.after -= {uid}
            if entry.stage is not Stage.PLACED:
                del self._book.placed[name]
            elif not entry.after:
                del self._book.placed[name]
                self.release(entry)

    def released(self, uid: str, plan_id: str, *, ok: bool) -> None:
        """The plan was written, or could not be (then it is tried again while it is still the plan)."""
        entry = self._book.entries.get(uid)
        if entry is None:
            return
        if ok:
            entry.written = plan_id
        if entry.plan is None or entry.plan.id != plan_id or entry.stage is not Stage.RELEASING:
            return
        if ok:
            entry.stage = Stage.RELEASED
            self._book.tell(entry, None, f"planned on {entry.plan.node}")
        else:
            self._book.want(ReleasePod(pod=entry.pod, plan=entry.plan, nodes=self._choices(entry, entry.plan)))

    def refused(self, action: Action, message: str, now_s: float) -> None:
        """The API server refuses a write for the pod as it is: its plan is given back until the pod changes."""
        book = self._book
        entry = book.entries.get(action.pod.uid)
        if isinstance(action, EvictPod):
            self.blocked(action.pod.uid, message, now_s)
        elif entry is None or not still_wanted(entry, action):
            return
        elif isinstance(action, ReleasePod | WritePlan):
            self.give_back(entry, "its plan", message, now_s)
        elif isinstance(action, UngatePod):
            self.give_back(entry, "the pod without its gate", message, now_s)

    def refused_binding(self, uid: str, plan_id: str, message: str, now_s: float) -> None:
        """The API server refuses the binding of the pod as it is."""
        entry = self._book.entries.get(uid)
        if entry is not None and entry.stage is Stage.RELEASED and entry.plan is not None and entry.plan.id == plan_id:
            self.give_back(entry, "its binding", message, now_s)

    def give_back(self, entry: Entry, what: str, message: str, now_s: float) -> None:
        """Set a pod aside for which the API server refuses a write; its planned devices are free."""
        book = self._book
        book.deferrals.defer(
            entry.facts.uid, now_s, first_s=REFUSED_FIRST_S, max_s=REFUSED_MAX_S, early=EarlyEnd.CHANGED
        )
        text = f"the API server refuses {what}: {message}; hint: {REFUSED_HINT}"
        book.give_back(entry, Reason.WRITE_REFUSED, text)

    def blocked(self, uid: str, message: str, now_s: float) -> None:
        """A budget keeps a victim: those who were to have its devices wait, and it holds them again."""
        book = self._book
        victim = book.entries.get(uid)
        if victim is None or victim.stage is not Stage.EVICTED:
            return
        for name in list(book.placed):
            entry = book.entries[name]
            if entry.stage is Stage.PLACED and uid in entry.after:
                book.scheduler.unbind(entry.id)
                book.wait(entry)
                book.tell(entry, Reason.NO_CAPACITY, _kept_text(victim.pod, entry.pod.namespace, message))
        self._heirs.refused(uid)
        victim.stage = Stage.BOUND
        victim.protected_until_s = now_s + PROTECTED_S
        self._protected.add(uid)
        self._pods.adopt(victim, victim.plan, now_s)

    def release(self, entry: Entry) -> None:
        """Have its plan written and its gate taken off."""
        assert entry.plan is not None
        entry.stage = Stage.RELEASING
        entry.releases += (entry.plan.id,)
        self._book.want(ReleasePod(pod=entry.pod, plan=entry.plan, nodes=self._choices(entry, entry.plan)))
        if entry.told[0] is not Reason.WRITE_REFUSED:  # else it is told when the plan is written
            self._book.tell(entry, None, f"planned on {entry.plan.node}")

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _choices(self, entry: Entry, plan: PodPlan) -> tuple[str, ...]:
        """Where a pod may go whose scheduler does not ask."""
        return () if entry.facts.own else alternatives(self._book, entry, plan.node)

    def _waits_for_others(self, entry: Entry, plan: PodPlan) -> bool:
        """Whether any of its devices are still those of somebody who was asked to leave."""
        book = self._book
        devices = devices_of(plan)
        leaving = [book.entries[uid] for uid in book.on_node.get(plan.node, ())]
        entry.after = frozenset(
            other.facts.uid
            for other in leaving
            if other.stage is Stage.EVICTED
            and other.plan is not None
            and not devices.isdisjoint(devices_of(other.plan))
        )
        if not entry.after:
            return False
        entry.stage = Stage.PLACED
        book.placed[entry.facts.uid] = None
        names = pod_mentions(book.entries[a].pod for a in entry.after)
        moved = any(uid in self._heirs for uid in entry.after)
        what = f"{names}, moved to make room for it," if moved else names
        reason = Reason.WAITS_FOR_MOVE if moved else Reason.NO_CAPACITY
        book.tell(entry, reason, f"it has its place on {plan.node} and waits for {what} to leave it")
        return True

    def _moved(self, entry: Entry, move: MoveBundle, now_s: float) -> None:
        """Its new place is kept for its heir, and it is asked to leave the old one."""
        kept = self._heirs.begin(entry, now_s)
        if entry.stage is Stage.EVICTED:
            return  # moved twice in one cycle
        where = f"to {kept.node}, where its place is kept for the pod that its owner makes instead" if kept else "away"
        self._evict(entry, Reason.MOVED, f"moved from {entry.node} {where}, to make room for {self._name(move.by)}")

    def _evict(self, entry: Entry, reason: Reason, message: str, *, owed: bool = False) -> None:
        """It is asked to leave, and with it who uses its claims: only then are their devices free."""
        entry.stage = Stage.EVICTED
        grace_s = self._pods.wishes.eviction_grace_s(entry)
        self._book.want(EvictPod(pod=entry.pod, reason=reason, message=message, grace_max_s=grace_s, owed=owed))
        _evict_sharers(self._book, entry, reason, message, grace_s=grace_s, owed=owed)

    def _name(self, uid: str) -> str:
        entry = self._book.entries.get(uid)
        return pod_mention(entry.pod if entry is not None else None)

    def _stopped(self, entry: Entry, stop: Stop) -> None:
        book = self._book
        whom = self._name(stop.by)
        if entry.stage in SETTLED or book.claims.is_kept(entry.facts.uid):
            book.scheduler.finished(entry.id)  # whoever makes it again makes another pod
            if entry.stage is not Stage.EVICTED:  # else it was moved in the same cycle
                self._evict(
                    entry, stop.reason, f"stopped for {whom} ({stop.reason.value}) on {entry.node}", owed=stop.owed
                )
        else:
            book.wait(entry)
            book.newcomers.pop(entry.id, None)  # the decision has looked at it already
            book.tell(entry, stop.reason, f"its place went to {whom} before it began")

    def _give_up_halves(self) -> None:
        """A gang that lost a member's place, and found no other, holds no devices: others can use them meanwhile."""
        book = self._book
        for gang in list(book.broken):
            members = [book.entries[uid] for uid in sorted(book.permits.members(gang))]
            placed = [e for e in members if e.stage in UNBOUND]
            riders = sum(e.facts.rides for e in members)
            _, needed = book.permits.missing(gang)
            if book.permits.is_begun(gang) or len(placed) + riders >= needed:
                continue
            for entry in placed:
                if not book.claims.is_kept(entry.facts.uid):
                    book.refuse_held(entry, f"gang {gang[1]} lost a place")
                    book.scheduler.unbind(entry.id)
                    book.wait(entry)
                elif entry.facts.remade:  # nobody else is given what is allocated to it
                    book.scheduler.finished(entry.id)
                    self._evict(
                        entry, Reason.GANG_INCOMPLETE, f"gang {gang[1]} lost a place, and others need its devices"
                    )
        book.broken.clear()

    def _unprotect(self, now_s: float) -> None:
        book = self._book
        for uid in list(self._protected):
            entry = book.entries.get(uid)
            if entry is None:
                self._protected.discard(uid)
            elif entry.protected_until_s <= now_s:
                self._protected.discard(uid)
                if entry.stage is Stage.BOUND and book.scheduler.holds(entry.id):
                    book.scheduler.unbind(entry.id)
                    book.scheduler.finished(entry.id)
                    self._pods.adopt(entry, entry.plan, now_s)


def _evict_sharers(book: Book, entry: Entry, reason: Reason, message: str, *, grace_s: int, owed: bool) -> None:
    for uid in book.claims.sharers(entry.facts.uid):
        other = book.entries.get(uid)
        if other is not None and other.stage is not Stage.EVICTED and (other.facts.node or other.facts.rides):
            other.stage = Stage.EVICTED
            text = f"{message}; it uses claims of {pod_mention(entry.pod)}"
            book.want(EvictPod(pod=other.pod, reason=reason, message=text, grace_max_s=grace_s, owed=owed))


def _unready(book: Book) -> str:
    """Why nodes that nobody cordoned take nothing."""
    names = book.unready
    if not names:
        return ""
    return f". The kubelets of {len(names)} nodes, {min(names)} among them, offer no {GPUS} now"


def still_wanted(entry: Entry, action: Action) -> bool:
    """Whether an action is still to be done when its turn comes."""
    match action:
        case ReleasePod():
            return entry.plan is not None and entry.plan.id == action.plan.id and not entry.facts.node
        case WritePlan():
            return entry.plan is not None and entry.plan.id == action.plan.id and entry.facts.node == action.plan.node
        case Nominate():
            return entry.plan is not None and entry.plan.node == action.node and not entry.facts.node
        case Report():
            return entry.told[0] is action.reason and not entry.facts.leaving
    return True


def plan_of(entry: Entry, start: StartBundle, plan_id: str) -> PodPlan:
    """The plan as it stands in the annotation."""
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
                slices=tuple(PlannedSlice.of(part) for part in placement.slices),
            )
            for part, placement in zip(entry.bundle.parts, start.placements, strict=True)
        ),
    )


def _told(book: Book, entry: Entry, explanation: Explanation) -> str:
    """In words of people: models for kinds of devices. Names of pods and queues are marked."""
    assert entry.bundle is not None
    text = text_of(explanation, chose_models=bool(entry.bundle.request.selector.models))
    return book.scheduler.kinds.plain(text)


def _kept_text(victim: PodName, reader: str, message: str) -> str:
    """Return why a pod that was to be stopped for another is not. The API server's message names the victim's budget."""
    why = message if victim.namespace == reader else budget_mention(victim.namespace, "")
    return f"{pod_mention(victim)} may not be stopped now: {why}"


def text_of(explanation: Explanation, *, chose_models: bool) -> str:
    """An explanation in one line: what is short, in numbers, and what would help. Where the pod chose no models, those that
    cannot serve it are left out already, and another model is no help."""
    causes = "; ".join(f"{cause.nodes}: {cause.text}" for cause in explanation.causes[:3])
    helps = [change for change in explanation.changes if chose_models or not change.startswith(OTHER_MODEL)]
    changes = "; ".join(helps[:2])
    return ". ".join(filter(None, (explanation.summary, causes, f"hint: {changes}" if changes else "")))
