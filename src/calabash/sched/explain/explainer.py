"""Explanation of why a request waits, from the verdict of the nodes and the state of its queue and gang.

The verdict of the nodes comes from ``verdicts``. This module adds the reasons that do not concern nodes: missing
members of the gang, limits and used-up guaranteed amounts of the queue, and devices that are held for reserved gangs.
It also names queues that borrow enough to give back what is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calabash.model.errors import Reason
from calabash.model.messages import Message, Names, QueueName, RequestName, Text, joined, names
from calabash.model.units import exact_duration, format_mib
from calabash.sched.actions.plan import has_topology, shapes_of
from calabash.sched.amounts import Amount
from calabash.sched.decisions import Explanation, Request
from calabash.sched.explain.domains import short_of_domain
from calabash.sched.explain.nodes import PASSING, explanation
from calabash.sched.explain.verdicts import Verdicts
from calabash.sched.queues.gang import Gang, StartGroup, start_group_of
from calabash.sched.queues.reservation import Reservation
from calabash.sched.queues.spec import OverLimit
from calabash.sched.state import SchedulerState

NAMED_MAX = 3
HOUR_S = 3600.0


class Explainer:
    """Explanations of one state of the scheduler. Create a new one when the state has changed.

    Args:
        verdicts: verdicts of the state's cluster; one object serves all explainers of the state.
    """

    def __init__(self, state: SchedulerState, verdicts: Verdicts) -> None:
        verdicts.use_version(state.version)
        self._state = state
        self._verdicts = verdicts
        # Caches by the first of the requests that start together, and their number.
        self._needs: dict[tuple[str, int], Amount] = {}
        self._fitting: dict[tuple[str, int], int] = {}
        self._behind: dict[tuple[str, Amount], bool] = {}

    def waiting(self, gang: Gang, request_id: str) -> Explanation:
        """Explain why a request waits in the current state."""
        start_group = start_group_of(gang, request_id)
        requests = start_group.requests if start_group else ()
        reason = Reason.GANG_INCOMPLETE if gang.incomplete else Reason.NO_CAPACITY
        return self.blocked(gang, requests, gang.waiting[request_id], reason)

    def blocked(self, gang: Gang, requests: Sequence[Request], request: Request, reason: Reason) -> Explanation:
        """Explain why a request was refused in a cycle.

        Args:
            requests: requests that would start together with this one, this one included; empty if there are none,
                because members of the gang are missing.
            reason: reason of the refusal.
        """
        if reason is Reason.GANG_INCOMPLETE:
            there = gang.required - gang.incomplete
            return explanation(
                reason,
                Message(
                    "gang {gang} needs {required} members, {there} submitted",
                    gang=gang.key[2],
                    required=gang.required,
                    there=there,
                ),
                changes=(Message("would be tried once {missing} more members are submitted", missing=gang.incomplete),),
            )
        if len(requests) < gang.missing:
            return explanation(
                reason,
                Message(
                    "gang {gang} must start its first {missing} members together, and they have not started",
                    gang=gang.key[2],
                    missing=gang.missing,
                ),
            )
        key = (requests[0].id, len(requests))
        need = self._needs.get(key)
        if need is None:
            need = self._needs[key] = self._state.need(requests)
        over = self._state.tree.over_limit(gang.queue, need)
        if over is not None:
            return _over_limit(over)
        return self._no_capacity(gang, requests, request, need)

    def _no_capacity(self, gang: Gang, requests: Sequence[Request], request: Request, need: Amount) -> Explanation:
        """Explain why a request does not fit: by the nodes, other reservations, or the guaranteed amount of its queue."""
        state = self._state
        own = next((r for r in state.reservations if r.gang == gang.key), None)
        verdict, changes = self._verdicts.verdict(request.shape)
        dominant = verdict.dominant
        reason = dominant.reason if dominant else Reason.NO_CAPACITY
        summary: Text = verdict.summary
        blocking: tuple[str, ...] = ()
        held: tuple[Text, ...] = ()
        past_use: Text = ""
        far = short_of_domain(state, requests) if has_topology(requests) and verdict.fitting else ""
        if far:
            reason, changes = Reason.TOPOLOGY, ()
            summary = Message("{far}; {nodes}", far=far, nodes=summary)
        elif verdict.fitting and len(requests) > 1:
            reason = Reason.NO_CAPACITY
            fitting = self._members_fitting(requests)
            tried = " (not all ways to place them together were tried)" if shapes_of(requests) in state.cut else ""
            summary = Message(
                "{fitting} of {members} members fit at once{tried}; {nodes}",
                fitting=fitting,
                members=len(requests),
                tried=tried,
                nodes=summary,
            )
            changes = (Message("would start with min_member <= {fitting}", fitting=fitting),) if fitting else ()
        elif verdict.fitting and not state.reservations:
            reason, summary = Reason.NO_CAPACITY, Message("{nodes}: will be tried in the next cycle", nodes=summary)
        elif verdict.fitting:
            reason = Reason.RESERVED
            blocking = tuple(name for r in state.reservations for name in r.request_ids)
            held = tuple(
                Message("{requests}, {until}", requests=_requests(r.request_ids), until=self._until(r))
                for r in state.reservations
            )
            reservations = joined("; ", map(self._held_for, state.reservations))
            summary = Message("{nodes}, {reservations}", nodes=summary, reservations=reservations)
        if reason in PASSING and self._over_deserved(gang, need):
            guaranteed, used = state.tree.guaranteed(gang.queue), state.tree.used(gang.queue)
            reason = Reason.QUEUE_OVER_DESERVED
            summary = Message(
                "queue {queue} uses {used} of {guaranteed} guaranteed devices and needs {need} more, none is free to borrow;"
                " {nodes}",
                queue=gang.queue,
                used=_devices(used.gpu_milli),
                guaranteed=_devices(guaranteed[0]),
                need=_devices(need.gpu_milli),
                nodes=summary,
            )
        if reason in PASSING or reason in (Reason.RESERVED, Reason.QUEUE_OVER_DESERVED):
            changes = (*changes, *self._give_back(gang, need))
            past_use = self._past_use(gang, need)
        found = explanation(reason, summary, verdict, changes)
        start_s = own.start_s if own else None
        blocking, held = blocking[:NAMED_MAX], held[:NAMED_MAX]
        return replace(found, blocked_by=blocking, reserved=held, estimated_start_s=start_s, past_use=past_use)

    def _held_for(self, reservation: Reservation) -> Text:
        """Return a text about a reservation: the held nodes, the requests of the reserved gang, and its end."""
        state = self._state
        nodes = _some(sorted(state.cluster.names[node] for node in reservation.requests_on))
        return Message(
            "held for a reserved gang: {nodes}, for {requests}, {until}",
            nodes=nodes,
            requests=_requests(reservation.request_ids),
            until=self._until(reservation),
        )

    def _until(self, reservation: Reservation) -> str:
        state = self._state
        expires_at_s = reservation.expires_at_s(state.options.reservation_hold_s)
        if expires_at_s is None:
            return f"which starts in {max(0.0, reservation.start_s - state.now_s):.0f} s"
        return f"for at most {max(0.0, expires_at_s - state.now_s):.0f} s more"

    def _over_deserved(self, gang: Gang, need: Amount) -> bool:
        """Return True if the queue would exceed its guaranteed amount, so that the gang could only start by borrowing."""
        tree = self._state.tree
        return any(tree.form.managed) and not tree.within_guaranteed(gang.queue, tree.used(gang.queue), need)

    def is_behind_by_past_use(self, start_group: StartGroup) -> bool:
        """Return True if another queue comes before that of the start group because this one used more in the past."""
        tree, queue = self._state.tree, start_group.gang.queue
        if tree.half_life_s <= 0:
            return False
        need = self._state.need(start_group.requests)
        if (queue, need) not in self._behind:
            self._behind[queue, need] = tree.ahead_by_past(queue, need) is not None
        return self._behind[queue, need]

    def _past_use(self, gang: Gang, need: Amount) -> Text:
        """Return a text if another queue comes first because this one used more in the past, otherwise ""."""
        tree = self._state.tree
        found = tree.ahead_by_past(gang.queue, need)
        if found is None:
            return ""
        queue, first = found
        return Message(
            "queue {queue} used {used} device-hours above its guarantee (half-life {half_life}), so its weight counts as"
            " {effective} instead of {weight}: queue {first}, which used less, comes first",
            queue=QueueName(queue),
            used=f"{tree.past_of(queue) / HOUR_S:.3g}",
            half_life=exact_duration(tree.half_life_s),
            effective=f"{tree.effective_weight(queue):.2g}",
            weight=f"{tree.form.spec(tree.form.index[queue]).over_quota_weight:g}",
            first=QueueName(first),
        )

    def _members_fitting(self, requests: Sequence[Request]) -> int:
        """Return the number of members that fit now, cached by the members.

        The members that fit on the fewest nodes are placed first, because they have the least choice.
        """
        key = (requests[0].id, len(requests))
        if key in self._fitting:
            return self._fitting[key]
        with self._verdicts.kept():
            count = self._fitting[key] = self._count_fitting(requests)
        return count

    def _count_fitting(self, requests: Sequence[Request]) -> int:
        """Return the number of members that can be placed, rolling the placements back."""
        transaction, placer = self._state.transaction, self._state.placer
        nodes = {r.shape: placer.nodes_for(r.shape).size for r in requests}
        mark = transaction.mark()
        count = 0
        for request in sorted(requests, key=lambda r: nodes[r.shape]):
            placement = placer.choose(request.shape)
            if placement is not None:
                transaction.place(request.shape, placement)
                count += 1
        transaction.rollback(mark)
        return count

    def _give_back(self, gang: Gang, need: Amount) -> tuple[Text, ...]:
        """Return a suggestion for each of the queues that could give back enough for the gang.

        These are the two largest borrowers among the queues that borrow at least as many devices as the gang needs.
        """
        tree = self._state.tree
        if not any(tree.form.managed):
            return ()
        borrowed = []
        for queue in tree.form.leaves:
            over = tree.used(queue).gpu_milli - tree.guaranteed(queue)[0]
            if queue != gang.queue and over >= need.gpu_milli > 0:
                borrowed.append((-over, queue))
        return tuple(
            Message(
                "would fit if queue {queue} gave back {devices} devices",
                queue=QueueName(q),
                devices=_devices(need.gpu_milli),
            )
            for _, q in sorted(borrowed)[:2]
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")


def _requests(ids: Sequence[str]) -> Names | Message:
    found = names(RequestName, ids[:NAMED_MAX])
    return Message("{requests}, ...", requests=found) if len(ids) > NAMED_MAX else found


def _over_limit(over: OverLimit) -> Explanation:
    """Explain an exceeded queue limit."""
    unit, queue = ("devices", "CPUs", "host memory")[over.resource], QueueName(over.queue)

    def show(amount: float) -> str:
        return format_mib(int(amount)) if over.resource == 2 else f"{amount / 1000:g}"

    return explanation(
        Reason.QUEUE_OVER_LIMIT,
        Message(
            "queue {queue} uses {used} of at most {limit} {unit}, {asked} more requested",
            queue=queue,
            used=show(over.used),
            limit=show(over.limit),
            unit=unit,
            asked=show(over.asked),
        ),
        changes=(
            Message(
                "would be tried if the limit of queue {queue} were {amount} {unit}",
                queue=queue,
                amount=show(over.used + over.asked),
                unit=unit,
            ),
        ),
    )


def _devices(milli: float) -> str:
    return f"{milli / 1000:g}"
