"""Relocations: move a pod by evicting it, while its new placement is reserved for the replacement pod.

Theory of operation. Kubernetes cannot move a pod, but the pod's controller creates another when the pod is evicted. The
new placement is reserved for this replacement pod: a pod of the same controller with the same request that appears
while the moved pod terminates or later. No other pod gets the reserved devices meanwhile. The pod for which the move
was made gets the devices that the moved pod frees. The reservation ends REPLACEMENT_TIMEOUT_S after the moved pod is
deleted, and at the latest TERMINATION_TIMEOUT_S after the move.

Relocations are not persisted. After a takeover the moved pod runs on, or terminates, and a replacement pod waits in its
queue like any other pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from calabash.binder.cluster.bundle import Bundle
from calabash.binder.cluster.cluster import StartBundle
from calabash.binder.cluster.device_kinds import PlacementConstraints
from calabash.binder.cluster.moves import MoveReservation, reserve_place, start_reserved
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.planner.state.move_lifecycle import MOVE_LIFECYCLE, REPLACEABLE, MoveEvent, MoveStage
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.planner.state.requests import PodRequests
from calabash.kubernetes.planner.state.store import PodStore
from calabash.model.state_machine import UnlistedTransitionError

REPLACEMENT_TIMEOUT_S = 60.0
TERMINATION_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Relocation:
    """A move of a pod in progress, with the life cycle ``state.move_lifecycle``.

    Args:
        pod: the moved pod.
        owner: namespace and UID of its controller.
        bundle: request that a replacement pod must have.
        constraints: placement constraints that a replacement pod must have.
        kept: the reservation; None if it was used or cancelled.
        ends_s: time at which the move ends.
    """

    pod: PodName
    owner: str
    bundle: Bundle
    constraints: PlacementConstraints
    kept: MoveReservation | None
    ends_s: float
    stage: MoveStage = MOVE_LIFECYCLE.initial


class Relocations:
    """All moves of pods that are in progress.

    Args:
        at_once: greatest number of moves in progress.
    """

    def __init__(self, store: PodStore, requests: PodRequests, *, at_once: int) -> None:
        self._store = store
        self._requests = requests
        self._at_once = at_once
        self._moves: dict[str, Relocation] = {}
        self._has_new_leaving = False

    def __contains__(self, uid: str) -> bool:
        """Return True if a move of the pod is in progress."""
        return uid in self._moves

    def __len__(self) -> int:
        return len(self._moves)

    def queues(self) -> set[str]:
        """Return the queues for which reservations are held; they must stay in the queue tree."""
        return {move.bundle.request.queue for move in self._moves.values() if move.kept is not None}

    # ---- moves ----------------------------------------------------------------------------------------------------

    def reserve(self, entry: PodEntry, now_s: float) -> MoveReservation | None:
        """Reserve the placement to which the scheduler has moved the pod; return None if another pod has it already."""
        scheduler, bundle = self._store.scheduler, entry.bundle
        known = scheduler.known.get(entry.id)
        kept = reserve_place(scheduler, entry.id)
        if kept is not None and known is not None and bundle is not None:
            self._moves[entry.facts.uid] = Relocation(
                pod=entry.pod,
                owner=entry.facts.owner,
                bundle=bundle,
                constraints=known.request.constraints,
                kept=kept,
                ends_s=now_s + TERMINATION_TIMEOUT_S,
            )
        return kept

    def eviction_refused(self, uid: str) -> None:
        """Cancel the move of a pod whose eviction was refused."""
        move = self._moves.get(uid)
        if move is not None:
            self._advance(move, MoveEvent.EVICTION_REFUSED)

    def pod_changed(self, entry: PodEntry) -> None:
        """Record that a moved pod has begun to terminate, and tell the scheduler whether a bound pod may be moved."""
        facts = entry.facts
        move = self._moves.get(facts.uid)
        if move is not None and facts.leaving and move.stage is MoveStage.REQUESTED:
            self._advance(move, MoveEvent.POD_TERMINATES)
        self._requests.mark_movable(entry)

    def pod_deleted(self, uid: str) -> None:
        """Record that a moved pod is deleted."""
        move = self._moves.get(uid)
        if move is not None:
            self._advance(move, MoveEvent.POD_DELETED)

    def cancel_reservations(self, node: str, devices: Collection[str] | None = None) -> None:
        """Cancel reservations on a node, or only on the given devices of it."""
        for move in list(self._moves.values()):
            kept = move.kept
            if kept is not None and kept.node == node and (devices is None or not kept.devices.isdisjoint(devices)):
                self._advance(move, MoveEvent.CANCELLED)

    # ---- relocations ----------------------------------------------------------------------------------------------------

    def place_replacements(self, now_s: float) -> list[tuple[PodEntry, StartBundle]]:
        """Return the replacement pods that were created, with the reserved devices that they get.

        Also ends moves whose time limit is over, and passes the number of further permitted moves to the scheduler.
        """
        started = list(self._started_replacements(now_s)) if self._moves else []
        for move in list(self._moves.values()):
            if move.stage is MoveStage.DELETED:  # the time begins at the first call after the pod was deleted
                move.ends_s = min(move.ends_s, now_s + REPLACEMENT_TIMEOUT_S)
            if move.ends_s <= now_s:
                self._advance(move, MoveEvent.TIMED_OUT)
        self._store.scheduler.scheduler.state.moves_left = max(0, self._at_once - len(self._moves))
        return started

    def _started_replacements(self, now_s: float) -> Iterator[tuple[PodEntry, StartBundle]]:
        """Yield waiting pods that match an open reservation, each with the placement that it gets.

        Newly submitted pods are searched. If a moved pod has begun to terminate since the last call, all pods are,
        because its replacement pod may have been submitted before.
        """
        store = self._store
        waiting = list[str](store.entries if self._has_new_leaving else store.newcomers)
        self._has_new_leaving = False
        open_ = [move for move in self._moves.values() if move.stage in REPLACEABLE]
        for uid in waiting if open_ else ():
            entry = store.entries.get(uid)
            if entry is None or entry.stage is not Stage.WAITING:
                continue
            move = next((m for m in open_ if self._is_replacement(entry.facts, entry, m)), None)
            if move is None or move.kept is None:
                continue
            start = start_reserved(store.scheduler, move.kept, self._requests.bundle_request(entry, now_s), now_s)
            move.kept = None  # the replacement pod has it
            self._advance(move, MoveEvent.REPLACED)
            open_.remove(move)
            if start is not None:
                store.remove_newcomer(entry)
                yield entry, start

    def _is_replacement(self, facts: PodFacts, entry: PodEntry, move: Relocation) -> bool:
        if facts.owner != move.owner or entry.bundle != move.bundle:
            return False
        return self._requests.bundle_request(entry).constraints == move.constraints

    def _advance(self, move: Relocation, event: MoveEvent) -> None:
        """Change the stage of a move as the table says, and cancel a reservation that the new stage does not have."""
        try:
            MOVE_LIFECYCLE.advance(move, event, name=move.pod.uid)
        except UnlistedTransitionError as error:
            self._store.on_unlisted(error)  # the move ends at its time limit
        self._has_new_leaving |= move.stage in REPLACEABLE
        if move.kept is not None and move.stage in (MoveStage.UNRESERVED, MoveStage.ENDED):
            self._store.scheduler.finished(move.kept.id)
            move.kept = None
        if move.stage is MoveStage.ENDED:
            del self._moves[move.pod.uid]
