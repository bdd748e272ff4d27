"""Pods that are moved: stopped where they are, with their new place kept for the pod that their owner makes instead.

Theory of operation. A pod cannot be moved, but its owner makes another when it is evicted. Its new place is held for that
one, the *heir*: a pod of the same owner that asks for the same, which comes while the moved one leaves or after it.
Nobody else has the place meanwhile, and who needed the room has what was cleared. The heir of a pod that is gone is
waited for a minute, that of one that takes its time to leave ten; then the place is free.

Nothing of this is written anywhere. A planner that takes over finds the moved pod where it was, or leaving, or its heir
that waits like others: each is a case that it knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from calabash.binder.cluster.bundle import Bundle
from calabash.binder.cluster.cluster import StartBundle
from calabash.binder.cluster.device_kinds import Wish
from calabash.binder.cluster.moves import KeptPlace, keep_place, take_over
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.state.facts import PodSeen
from calabash.kubernetes.planner.state.requests import Wishes
from calabash.kubernetes.planner.state.store import Book, Entry, Stage

HEIR_S = 60.0
LEAVE_S = 600.0


@dataclass(slots=True)
class MoveUnderWay:
    """One that is under way: until the pod is gone, and its place is the heir's or free.

    Args:
        kept: its new place; None: it is the heir's, or was given up.
        ends_s: when nobody waits any longer.
    """

    pod: PodName
    owner: str
    bundle: Bundle
    wish: Wish
    kept: KeptPlace | None
    ends_s: float
    leaving: bool = False
    gone: bool = False


class Heirs:
    """All moves under way.

    Args:
        at_once: how many there may be at a time.
    """

    def __init__(self, book: Book, wishes: Wishes, *, at_once: int) -> None:
        self._book = book
        self._wishes = wishes
        self._at_once = at_once
        self._moves: dict[str, MoveUnderWay] = {}
        self._news = False

    def __contains__(self, uid: str) -> bool:
        """Whether the pod is being moved, or was a moment ago."""
        return uid in self._moves

    def __len__(self) -> int:
        return len(self._moves)

    def queues(self) -> set[str]:
        """Queues to which places that are kept belong."""
        return {move.bundle.request.queue for move in self._moves.values() if move.kept is not None}

    # ---- moves ----------------------------------------------------------------------------------------------------

    def begin(self, entry: Entry, now_s: float) -> KeptPlace | None:
        """The scheduler has moved it: keep its place there. None: that is another's already."""
        scheduler, bundle = self._book.scheduler, entry.bundle
        known = scheduler.known.get(entry.id)
        kept = keep_place(scheduler, entry.id)
        if kept is not None and known is not None and bundle is not None:
            self._moves[entry.facts.uid] = MoveUnderWay(
                pod=entry.pod,
                owner=entry.facts.owner,
                bundle=bundle,
                wish=known.request.wish,
                kept=kept,
                ends_s=now_s + LEAVE_S,
            )
        return kept

    def refused(self, uid: str) -> None:
        """It does not leave."""
        move = self._moves.pop(uid, None)
        if move is not None:
            self._give_up(move)

    def see(self, entry: Entry) -> None:
        """A pod that has its node is otherwise than it was."""
        facts = entry.facts
        move = self._moves.get(facts.uid)
        if move is not None and facts.leaving and not move.leaving:
            move.leaving = self._news = True
        self._wishes.mark_movable(entry)

    def gone(self, uid: str) -> None:
        move = self._moves.get(uid)
        if move is not None:
            move.leaving = move.gone = self._news = True

    def lose(self, node: str, devices: Collection[str] | None = None) -> None:
        """The node takes nothing new, or these devices of it."""
        for move in self._moves.values():
            kept = move.kept
            if kept is not None and kept.node == node and (devices is None or not kept.devices.isdisjoint(devices)):
                self._give_up(move)

    # ---- heirs ----------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[tuple[Entry, StartBundle]]:
        """Heirs that have come, with their places; and how many more may be moved now."""
        started = list(self._taken(now_s)) if self._moves else []
        for uid, move in list(self._moves.items()):
            if move.gone and move.kept is not None:
                move.ends_s = min(move.ends_s, now_s + HEIR_S)  # from when this is first seen
            if move.ends_s <= now_s:
                self._give_up(move)
            if move.kept is None and (move.gone or move.ends_s <= now_s):
                del self._moves[uid]
        self._book.scheduler.scheduler.state.moves_left = max(0, self._at_once - len(self._moves))
        return started

    def _taken(self, now_s: float) -> Iterator[tuple[Entry, StartBundle]]:
        book = self._book
        waiting = list(book.entries if self._news else book.newcomers)
        self._news = False
        open_ = [move for move in self._moves.values() if move.kept is not None and move.leaving]
        for uid in waiting if open_ else ():
            entry = book.entries.get(uid)
            if entry is None or entry.stage is not Stage.WAITING:
                continue
            move = next((m for m in open_ if self._is_heir(entry.facts, entry, m)), None)
            if move is None or move.kept is None:
                continue
            start = take_over(book.scheduler, move.kept, self._wishes.request(entry, now_s), now_s)
            move.kept = None
            open_.remove(move)
            if start is not None:
                book.newcomers.pop(entry.id, None)
                yield entry, start

    def _is_heir(self, facts: PodSeen, entry: Entry, move: MoveUnderWay) -> bool:
        if facts.owner != move.owner or entry.bundle != move.bundle:
            return False
        return self._wishes.request(entry).wish == move.wish

    def _give_up(self, move: MoveUnderWay) -> None:
        if move.kept is not None:
            self._book.scheduler.finished(move.kept.id)
            move.kept = None
