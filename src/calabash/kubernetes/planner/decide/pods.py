"""Pods that come, change and go.

Theory of operation. What the API server says of a pod is the truth about what has happened, the book is the truth about
what is promised. A pod without a node stands in the scheduler's queue from the moment in which only our gate, or none,
holds it. A pod with a node holds what its plan says, whoever wrote it; where nobody wrote one, its node's agent gave it
devices, and they are known from the node's slices. A plan that was found in an annotation (after a restart) is kept where
there is room for it, and members of a gang keep theirs together or not at all: half a gang with devices would hold them
idle.
"""

from __future__ import annotations

from collections.abc import Iterable

from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.facts import Nominate, PodSeen
from calabash.kubernetes.planner.state.queues import KubeQueues
from calabash.kubernetes.planner.state.requests import SYSTEM_NAMESPACES, Wishes
from calabash.kubernetes.planner.state.store import SETTLED, Book, Entry, Stage
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import Placement


class Pods:
    """Events of pods; see the module's description."""

    def __init__(self, book: Book, queues: KubeQueues, system_namespaces: frozenset[str] = SYSTEM_NAMESPACES) -> None:
        self._book = book
        self.wishes = Wishes(book, queues, system_namespaces)

    # ---- events ---------------------------------------------------------------------------------------------------

    def see(self, facts: PodSeen, now_s: float) -> None:
        """A pod is there, or is otherwise than it was."""
        book = self._book
        entry = book.entries.get(facts.uid)
        if facts.finished:
            self.gone(facts.uid)
            return
        if entry is None:
            if facts.leaving and not facts.node:
                return
            entry = book.add(facts)
            book.see(entry, facts)
            if book.started:
                self.enter(entry, now_s)
            return
        before = entry.facts
        book.see(entry, facts)
        if book.started:
            self._changed(entry, before, now_s)

    def gone(self, uid: str) -> None:
        """A pod is gone, or ended: its devices are free, and who waited for them goes on."""
        book = self._book
        entry = book.entries.get(uid)
        if entry is None:
            return
        book.scheduler.finished(entry.id)
        self.wishes.forget(entry)
        book.forget(entry)

    def enter(self, entry: Entry, now_s: float) -> None:
        """Find its place in the book."""
        facts = entry.facts
        if facts.node:
            entry.stage = Stage.BOUND
            self.wishes.describe(entry)
            self.adopt(entry, facts.plan, now_s)
            if entry.gang is not None:
                self._book.permits.bound(facts.uid, entry.gang)
        else:
            self.submit(entry)

    def restart(self, entries: Iterable[Entry], now_s: float) -> None:
        """Take over what others left: bound pods first, then plans of gangs that are complete, then who waits."""
        waiting: list[Entry] = []
        planned: dict[object, list[Entry]] = {}
        for entry in sorted(entries, key=lambda e: (e.facts.bound_at_s, e.facts.created_at_s, e.facts.uid)):
            if entry.facts.node:
                self.enter(entry, now_s)
            elif entry.facts.plan is not None and not (entry.facts.gated or entry.facts.leaving):
                self.wishes.describe(entry)
                planned.setdefault(entry.gang or entry.facts.uid, []).append(entry)
            else:
                waiting.append(entry)
        for members in planned.values():
            self._resume(members, now_s)
        for entry in waiting:
            self.submit(entry)

    # ---- places ---------------------------------------------------------------------------------------------------

    def submit(self, entry: Entry) -> None:
        """Have it stand in its queue, or say why it cannot."""
        book, facts = self._book, entry.facts
        if facts.leaving:
            book.put_aside(entry, Reason.CONFLICT, "it is being deleted")
            return
        if facts.held:
            book.put_aside(entry, Reason.CONFLICT, "another scheduling gate holds it")
            return
        if book.deferrals.waits(facts.uid):
            return
        if not self.wishes.describe(entry):
            if facts.rides and not facts.waits_for and entry.stage is not Stage.RIDING:
                book.ride(entry)
            return
        try:
            book.scheduler.submit(self.wishes.request(entry))
        except CalabashError as error:
            book.put_aside(entry, error.reason, f"{error.message}; {error.hint}" if error.hint else error.message)
            return
        book.wait(entry)

    def adopt(self, entry: Entry, plan: PodPlan | None, now_s: float) -> bool:
        """Have it hold what the plan says, from when it was bound on; False when that is not there."""
        book = self._book
        bundle = entry.bundle
        if plan is None or bundle is None or (entry.facts.node and entry.facts.node != plan.node):
            return False
        found = [plan.container(part.name) for part in bundle.parts]
        placements: list[Placement] = [c.placement(plan.node) for c in found if c is not None]
        if len(placements) < len(bundle.parts):
            return False
        try:
            started_at_s = min(entry.facts.bound_at_s or now_s, now_s)
            book.scheduler.adopt(self.wishes.request(entry, now_s), placements, started_at_s=started_at_s)
        except CalabashError:
            return False
        book.settle(entry, plan)
        entry.written = plan.id
        self.wishes.mark_movable(entry)
        return True

    def drop(self, entry: Entry) -> None:
        """It loses its place, because its node or a device is gone. What is bound stays so; what is not waits again."""
        book = self._book
        if entry.stage in SETTLED:
            book.scheduler.finished(entry.id)
        elif book.scheduler.holds(entry.id):
            book.scheduler.unbind(entry.id)
            book.wait(entry)

    def again(self) -> None:
        """Try those that were put aside: something changed that they may have waited for."""
        for uid in list(self._book.aside):
            entry = self._book.entries[uid]
            if entry.facts.node == "":
                self.submit(entry)
            else:
                self._again_bound(entry)

    def _again_bound(self, entry: Entry) -> None:
        """A pod that others bound, and that could not be decided, may be planned on its node now."""
        book, uid = self._book, entry.facts.uid
        if entry.facts.leaving or entry.stage not in (Stage.ASIDE, Stage.BOUND):
            book.aside.pop(uid, None)
        elif self.wishes.describe(entry):
            book.aside.pop(uid, None)
            entry.stage = Stage.BOUND
            if not book.scheduler.holds(entry.id):
                book.late[uid] = None
                book.late_news = True

    def deferred(self, now_s: float) -> None:
        """Try those that were set aside for a while that is over."""
        for uid in self._book.deferrals.due(now_s):
            self.submit(self._book.entries[uid])

    def unshun(self, now_s: float) -> None:
        """Those that waited because some nodes were left out may go there again."""
        owners = set(self.wishes.shunned.expired(now_s))
        for entry in list(self._book.entries.values()) if owners else ():
            if entry.facts.owner in owners and entry.stage is Stage.WAITING and not entry.facts.own:
                self._book.scheduler.finished(entry.id)
                self.submit(entry)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _changed(self, entry: Entry, before: PodSeen, now_s: float) -> None:
        book, facts = self._book, entry.facts
        if facts.node:
            if entry.stage not in (Stage.BOUND, Stage.EVICTED):
                self._bound(entry, now_s)
        elif facts.leaving:
            if entry.stage in SETTLED:
                return  # its binding may have come first
            book.scheduler.finished(entry.id)
            book.newcomers.pop(entry.id, None)
            book.settle(entry, None)
            book.put_aside(entry, Reason.CONFLICT, "it is being deleted")
        elif entry.stage is Stage.ASIDE:
            book.deferrals.changed(facts.uid)
            self.submit(entry)
        elif entry.stage in (Stage.WAITING, Stage.RIDING):
            if _asks(before) != _asks(facts):
                book.scheduler.finished(entry.id)
                book.newcomers.pop(entry.id, None)
                self.submit(entry)
        elif entry.plan is not None:
            if facts.plan is not None and facts.plan.id == entry.plan.id and not facts.gated:
                entry.written = facts.plan.id
                entry.plan = facts.plan if facts.plan == entry.plan else entry.plan  # one of the two need be held
                if entry.stage is Stage.RELEASING:
                    entry.stage = Stage.RELEASED
            if facts.refused and not facts.nominated and before.nominated and entry.stage is Stage.RELEASED:
                book.want(Nominate(pod=entry.pod, node=entry.plan.node))  # an attempt that failed took it away

    def _bound(self, entry: Entry, now_s: float) -> None:
        """Somebody gave it a node: as planned, or otherwise."""
        book, facts = self._book, entry.facts
        mine = entry.plan
        agreed = mine is not None and mine.node == facts.node and (facts.plan is None or facts.plan.id == mine.id)
        if not agreed:
            book.scheduler.finished(entry.id)
            book.newcomers.pop(entry.id, None)
            book.aside.pop(facts.uid, None)
            book.settle(entry, None)
            self.wishes.describe(entry)
            self.adopt(entry, facts.plan, now_s)
        entry.stage = Stage.BOUND
        book.deferrals.forget(facts.uid)
        if entry.gang is not None:
            book.permits.bound(facts.uid, entry.gang)

    def _resume(self, members: list[Entry], now_s: float) -> None:
        """Plans from before a restart: kept together, or made anew together."""
        book = self._book
        adopted = [e for e in members if e.bundle is not None and self.adopt(e, e.facts.plan, now_s)]
        gang = members[0].gang
        complete = True
        if gang is not None:
            there, needed = book.permits.missing(gang)
            complete = book.permits.is_begun(gang) or there + len(adopted) >= needed
        for entry in members:
            if entry.plan is None:
                if entry.bundle is not None:
                    self.submit(entry)
            elif complete or is_allocated(entry.plan):  # it has its devices, whatever becomes of the others
                entry.stage = Stage.RELEASED
                if entry.facts.nominated != entry.plan.node:
                    book.want(Nominate(pod=entry.pod, node=entry.plan.node))
            else:
                book.scheduler.unbind(entry.id)
                book.wait(entry)


def _asks(facts: PodSeen) -> tuple[object, ...]:
    """All that decides where a pod that waits may start."""
    return (facts.request, facts.wish, facts.priority, facts.pins, facts.waits_for, facts.rides)


def holders(book: Book, node: str) -> list[Entry]:
    """Pods that are on a node or are to be there."""
    return [book.entries[uid] for uid in sorted(book.on_node.get(node, ()))]


def displace(book: Book, entry: Entry) -> None:
    """It is bound and has not begun, and its devices were given to others: it is planned anew on its node."""
    uid = entry.facts.uid
    if uid in book.late or entry.bundle is None:
        return
    book.scheduler.finished(entry.id)
    book.settle(entry, None)
    book.late[uid] = None
    book.late_news = True


def submit_anew(book: Book, pods: Pods) -> None:
    """There is a kind of devices that those who wait do not know: it may serve them, or must not."""
    for entry in [e for e in book.entries.values() if e.stage is Stage.WAITING]:
        _submit_again(book, pods, entry)


def submit_resized(book: Book, pods: Pods) -> None:
    """Gangs have members that ask for nothing, or have them no more: the scheduler waits for the others."""
    resized, pods.wishes.resized = pods.wishes.resized, set()
    for gang in resized:
        for uid in sorted(book.permits.members(gang)):
            if book.entries[uid].stage is Stage.WAITING:
                _submit_again(book, pods, book.entries[uid])


def _submit_again(book: Book, pods: Pods, entry: Entry) -> None:
    """What a pod that waits asks for, or what is known of devices, is otherwise than when it was put into its queue."""
    book.scheduler.finished(entry.id)
    book.newcomers.pop(entry.id, None)
    pods.submit(entry)
