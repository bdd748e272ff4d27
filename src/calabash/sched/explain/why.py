"""What a waiting request is told: which of all causes is the one, in whose terms, and what would help.

The nodes' side comes from ``explain``; here the queue's side is added: members that are missing, limits, guarantees
that are used up, devices held for a reserved gang, and queues that could give something back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from calabash.model.errors import Reason
from calabash.model.units import format_mib
from calabash.sched.actions.reserve import HeldNodes
from calabash.sched.cluster.shape import Shape
from calabash.sched.decisions import Explanation, Request
from calabash.sched.explain.nodes import PASSING, NodeVerdict, changes_for, explanation, judge
from calabash.sched.queues.fairshare import EPSILON, Amount
from calabash.sched.queues.registry import Gang, total
from calabash.sched.queues.tree import OverLimit

if TYPE_CHECKING:
    from calabash.sched.scheduler import Scheduler


class Why:
    """Explanations of one cycle; what the nodes say is asked once per shape."""

    def __init__(self, scheduler: Scheduler, held: HeldNodes) -> None:
        self._s = scheduler
        self._held = held
        self._verdicts: dict[Shape, tuple[NodeVerdict, tuple[str, ...]]] = {}

    def blocked(self, gang: Gang, requests: Sequence[Request], request: Request, reason: Reason) -> Explanation:
        if reason is Reason.GANG_INCOMPLETE:
            there = gang.required - gang.incomplete
            return explanation(
                reason,
                f"gang {gang.key[2]} waits for members: {there} of {gang.required} have come",
                changes=(f"would be tried once {gang.incomplete} more members are submitted",),
            )
        need = total(self._s.charge_of(a.shape) for a in requests)
        over = self._s.tree.over_limit(gang.queue, need)
        if over is not None:
            return _over_limit(over)
        return self._no_room(gang, requests, request, need)

    def _verdict(self, shape: Shape) -> tuple[NodeVerdict, tuple[str, ...]]:
        """What the nodes say and what would help, once per shape: nothing moves while reasons are told."""
        found = self._verdicts.get(shape)
        if found is None:
            verdict = judge(self._s.room.compiled(shape))
            found = (verdict, () if verdict.fitting else changes_for(self._s.cluster, shape))
            self._verdicts[shape] = found
        return found

    def _no_room(self, gang: Gang, requests: Sequence[Request], request: Request, need: Amount) -> Explanation:
        start_s = next((r.start_s for r in self._held.reservations if r.gang == gang.key), None)
        verdict, changes = self._verdict(request.shape)
        dominant = verdict.dominant
        reason = dominant.reason if dominant else Reason.NO_CAPACITY
        summary = verdict.summary
        if verdict.fitting and len(requests) > 1:
            reason = Reason.NO_CAPACITY
            fitting = self._members_fitting(requests)
            summary = f"{fitting} of {len(requests)} members fit at once; {summary}"
            changes = (f"would start with min_member <= {fitting}",) if fitting else ()
        elif verdict.fitting and not self._held.reservations:
            reason, summary = Reason.NO_CAPACITY, f"{summary}: its turn comes in the next cycle"
        elif verdict.fitting:
            reason = Reason.RESERVED
            names = sorted({self._s.cluster.names[n] for r in self._held.reservations for n in r.requests_on})
            summary = f"{summary}, held for a reserved gang: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        passing = reason in PASSING or reason is Reason.RESERVED
        if passing and reason is not Reason.RESERVED and self._over_deserved(gang, need):
            guaranteed = self._s.tree.guaranteed(gang.queue)
            used = self._s.tree.used(gang.queue)
            reason = Reason.QUEUE_OVER_DESERVED
            summary = (
                f"queue {gang.queue} holds {_devices(used.gpu_milli)} of {_devices(guaranteed[0])} deserved devices"
                f" and asks {_devices(need.gpu_milli)} more, nothing is free to borrow; {summary}"
            )
        if passing:
            changes = (*changes, *self._give_back(gang, need))
        return replace(explanation(reason, summary, verdict, changes), estimated_start_s=start_s)

    def _over_deserved(self, gang: Gang, need: Amount) -> bool:
        """Whether the queue would hold more than it is guaranteed: then it waits for something to borrow."""
        tree = self._s.tree
        used, guaranteed = tree.used(gang.queue), tree.guaranteed(gang.queue)
        managed = [r for r, on in enumerate(tree.managed) if on and need[r] > 0]
        return any(tree.managed) and not (
            managed and all(used[r] + need[r] <= guaranteed[r] + EPSILON for r in managed)
        )

    def _members_fitting(self, requests: Sequence[Request]) -> int:
        mark = self._s.board.mark()
        self._s.room.admitting = False
        count = 0
        for request in requests:
            placement = self._s.room.choose(request.shape)
            if placement is None:
                break
            self._s.board.place(request.shape, placement)
            count += 1
        self._s.board.rollback(mark)
        return count

    def _give_back(self, gang: Gang, need: Amount) -> tuple[str, ...]:
        """Queues that hold more than they are guaranteed, the largest borrower first."""
        tree = self._s.tree
        if not any(tree.managed):
            return ()
        borrowed = []
        for queue in tree.leaves():
            over = tree.used(queue).gpu_milli - tree.guaranteed(queue)[0]
            if queue != gang.queue and over >= need.gpu_milli > 0:
                borrowed.append((-over, queue))
        return tuple(
            f"would fit if queue {q} gave back {_devices(need.gpu_milli)} devices" for _, q in sorted(borrowed)[:2]
        )


def _over_limit(over: OverLimit) -> Explanation:
    unit = ("devices", "CPUs", "host memory")[over.resource]

    def show(amount: int) -> str:
        return format_mib(amount) if over.resource == 2 else f"{amount / 1000:g}"

    return explanation(
        Reason.QUEUE_OVER_LIMIT,
        f"queue {over.queue} holds {show(over.used)} of at most {show(over.limit)} {unit}, asked {show(over.asked)}",
        changes=(f"would be tried if the limit of queue {over.queue} were {show(over.used + over.asked)} {unit}",),
    )


def _devices(milli: float) -> str:
    return f"{milli / 1000:g}"
