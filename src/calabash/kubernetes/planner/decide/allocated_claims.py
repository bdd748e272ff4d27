"""What was allocated to claims takes the place of what was planned.

Theory of operation. The planner chooses a pod's node, and until its claims are allocated it holds the room that it planned
there. Which devices of the node it gets, Kubernetes' own allocator chooses. From then on the pod holds these in the book, and
who was planned there and has not begun is given others, of the same node where it can be. An allocation that the book has no
room for is never refused: it is memory that a stranger holds (``Fleet``), and so is one of pods that nobody here knows.

A pod that is gone holds what it held until its claims are free: until then nobody else is given it by the allocator either.
"""

from __future__ import annotations

from calabash.binder.cluster.upkeep import start_on
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.planner.decide.decisions import Decisions
from calabash.kubernetes.planner.decide.pods import Pods
from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.kubernetes.planner.state.store import SETTLED, UNBOUND, Book, Entry, Stage, devices_of
from calabash.model.errors import CalabashError


class ClaimPlaces:
    """See the module's description."""

    def __init__(self, book: Book, pods: Pods, decisions: Decisions) -> None:
        self._book = book
        self._pods = pods
        self._decisions = decisions
        self._left: set[str] = set()  # pods that are gone and hold claims that are not free

    # ---- pods -----------------------------------------------------------------------------------------------------

    def look(self, entry: Entry, now_s: float) -> None:
        """A pod, or what its claims have, is otherwise than it was."""
        book, plan = self._book, entry.facts.plan
        if plan is None or not is_allocated(plan) or entry.stage is Stage.EVICTED or entry.facts.leaving:
            return
        holds = book.scheduler.holds(entry.id)
        if holds and entry.plan is not None and entry.plan.id == plan.id:
            return
        stage = entry.stage
        moved = self._take(entry, plan, now_s)
        if stage in SETTLED:
            entry.stage = stage
        elif entry.facts.gated:
            self._decisions.release(entry)
        else:
            entry.stage = Stage.RELEASED
        for other in moved:
            self._move(other, plan.node, now_s)

    def keeps(self, uid: str) -> bool:
        """A pod is gone: whether it still holds something, because its claims are not free and nobody else uses them."""
        book, entry = self._book, self._book.entries.get(uid)
        held = entry is not None and (entry.stage is Stage.EVICTED or book.scheduler.holds(entry.id))
        if (
            not held
            or entry is None
            or entry.stage not in SETTLED
            or not book.claims.is_kept(uid)
            or book.claims.sharers(uid)
        ):
            self._left.discard(uid)
            return False
        self._left.add(uid)
        return True

    def freed(self) -> list[str]:
        """Pods that are gone, and now hold nothing any more."""
        return [uid for uid in sorted(self._left) if not self.keeps(uid)]

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _take(self, entry: Entry, plan: PodPlan, now_s: float) -> list[Entry]:
        """Have it hold what it was given; those who had been planned there, and hold nothing now."""
        book = self._book
        book.scheduler.finished(entry.id)
        book.newcomers.pop(entry.id, None)
        book.aside.pop(entry.facts.uid, None)
        book.placed.pop(entry.facts.uid, None)
        moved: list[Entry] = []
        if not self._pods.wishes.describe(entry) or entry.bundle is None:
            book.settle(entry, plan)
            return moved
        if not self._pods.adopt(entry, plan, now_s):
            moved = [other for other in self._planned_there(plan) if other is not entry]
            for other in moved:
                book.scheduler.finished(other.id)
            if not self._pods.adopt(entry, plan, now_s):
                book.settle(entry, plan)  # counted as a stranger's
        return moved

    def _planned_there(self, plan: PodPlan) -> list[Entry]:
        devices = devices_of(plan)
        on_it = [self._book.entries[uid] for uid in sorted(self._book.on_node.get(plan.node, ()))]
        return [
            other
            for other in on_it
            if other.stage in UNBOUND
            and other.plan is not None
            and not is_allocated(other.plan)
            and not devices.isdisjoint(devices_of(other.plan))
        ]

    def _move(self, other: Entry, node: str, now_s: float) -> None:
        """Other devices of its node, at once; or it waits again."""
        book = self._book
        try:
            start = start_on(book.scheduler, self._pods.wishes.request(other, now_s), [node], now_s)
        except CalabashError:
            start = None
        if start is None:
            book.settle(other, None)
            self._pods.submit(other)
        elif other.stage is Stage.RELEASED:
            self._decisions.planned_anew(other, start)
        else:
            self._decisions.started(other, start)
