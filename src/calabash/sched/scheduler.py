"""The scheduler: events in, decisions out.

``Scheduler`` is the face of one ``SchedulerState``: the resident cluster, the queue tree and the registry of what waits and
runs. Callers report what happened (submitted, ended, a node came or went) and ask for a ``cycle``, or for ``decide`` about
one request; the decisions are already taken in the state when it returns. Time is the ``now_s`` argument, on any clock that
the caller likes. It does no I/O, keeps no thread, and the same class serves the stand-alone pool, the planner and the
simulator.

| event | effect |
|---|---|
| ``submit`` | joins its queue; its demand counts for fair shares |
| ``cycle`` | ``Bind``: runs from now on; ``Evict``: waits again; ``Move``: runs elsewhere; ``Defer``: waits |
| ``decide`` | the same for one request, at the cost of one decision while nothing was freed since the last cycle |
| ``adopt`` | runs already, at this place (restart of the caller, foreign placements) |
| ``finished`` | ended by itself, or cancelled: its place is free |
| ``unbind`` | a bind could not be carried out: it waits again, keeping its place in the order of its queue |
| node events | capacity changes; what ran on a removed node waits again |

An executor carries decisions out in order: evictions and moves first, a ``Bind`` once all in its ``after`` are gone. A caller
that uses ``decide`` for what is submitted calls ``cycle`` after everything else, and at the latest at ``wake_at_s``.

What starts may change the order of the queues, what is in quota and what is promised, so that a request that was refused
earlier in the same cycle starts in the next one. The causes that are known make another cycle due at once. Some remain, since
searches for places and victims are bounded. So after each cycle or ``decide`` that changed something another cycle is due,
until one decides nothing: at once where there was no other cycle for ``LOOK_AGAIN_S``, else when that time is over. A
caller that makes a cycle every second has no more cycles for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import NodePlacement
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.cycle import Cycle
from calabash.sched.decisions import Decision, Explanation, Options, Request, Running
from calabash.sched.explain.why import Why
from calabash.sched.policies.registry import policy_named
from calabash.sched.queues.gang import portion_of
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.rounds import CycleLimit, SchedulingRound
from calabash.sched.snapshot import Snapshot
from calabash.sched.state import SchedulerState
from calabash.sched.unchanged import CycleMemory
from calabash.sched.walk import first_of

DEFAULT_POLICY = "pgb-online"
LOOK_AGAIN_S = 1.0  # longest wait for the cycle that is due after one that changed something


class Scheduler:
    """See the module's description.

    Args:
        nodes: the cluster; more come and go by ``add_node`` and ``remove_node``.
        queues: the tree; requests name its leaves.
        policy: which node is best; a name as in ``policies.registry``, or a policy.
        options: how to decide.
        gpus_per_node_max: most devices of a node that comes later; 0: as many as the largest of ``nodes`` has.
        limit: how long one cycle may take; None: as long as it needs to look at everything.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        queues: Iterable[QueueSpec],
        *,
        policy: str | PlacementPolicy = DEFAULT_POLICY,
        options: Options | None = None,
        gpus_per_node_max: int = 0,
        limit: CycleLimit | None = None,
    ) -> None:
        self.policy = policy_named(policy) if isinstance(policy, str) else policy
        self.state = SchedulerState(
            nodes, queues, policy=self.policy, options=options or Options(), gpus_per_node_max=gpus_per_node_max
        )
        self._memory = CycleMemory(self.state)
        self._limit = limit
        self._round: SchedulingRound | None = None  # one that is not complete
        self._looked_at_s = -math.inf  # when a round was complete
        self._again_at_s: float | None = (
            None  # when everything is looked at again, since the last decisions changed something
        )
        self.cluster = self.state.cluster
        self.room = self.state.room
        self.tree = self.state.tree
        self.registry = self.state.registry
        self.specs = {spec.name: spec for spec in nodes}

    # ---- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Join the queue. Raises CalabashError: unknown queue, id in use."""
        self.state.join(request)
        self.room.engine.observe(request.shape)

    def finished(self, request_id: str) -> None:
        """It ended by itself, or is cancelled. Raises CalabashError when the id is unknown."""
        self.state.remove(request_id)

    def adopt(
        self, request: Request, *, node: str = "", placement: NodePlacement | None = None, started_at_s: float
    ) -> Running:
        """It runs already: at ``placement``, or on the best place (of ``node`` if named).

        Raises CalabashError when there is no such room.
        """
        if placement is None:
            room = self.room
            placement = room.choose_on(request.shape, self.cluster.row(node)) if node else room.choose(request.shape)
            if placement is None:
                raise CalabashError(
                    f"{request.id} has no room {'on ' + node if node else 'anywhere'}", reason=Reason.NO_CAPACITY
                )
        self.submit(request)
        try:
            self.cluster.place(request.shape, placement, held=True)
        except CalabashError:
            self.state.remove(request.id)
            raise
        return self.state.begin(request, placement, started_at_s)

    def unbind(self, request_id: str) -> None:
        """Its bind could not be carried out: it waits again."""
        if self.registry.running(request_id) is not None:
            running = self.state.stop(request_id)
            self.cluster.release(running.request.shape, running.placement)
            self.state.turns.undo_start(running.request.queue, running.request.behalf)

    # ---- nodes and queues -----------------------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> None:
        self.cluster.add_node(spec)
        self.specs[spec.name] = spec
        self.state.count_capacity(self.cluster.removed)

    def remove_node(self, name: str) -> tuple[str, ...]:
        """The node is gone; what ran there waits again. Returns their ids."""
        row = self.cluster.row(name)
        lost = tuple(self.registry.on_node.get(row, ()))
        for request_id in lost:
            self.unbind(request_id)
        self.cluster.forget(row)
        self.cluster.cordon(row)
        self.specs.pop(name, None)
        self.state.count_capacity(self.cluster.removed)
        return lost

    def cordon(self, name: str, *, schedulable: bool = False) -> None:
        """Nothing new goes there, or new things may go there again."""
        self.cluster.cordon(self.cluster.row(name), schedulable=schedulable)
        self.state.freed()

    def set_health(self, name: str, device: int, *, healthy: bool) -> None:
        """A device that is not healthy takes nothing new."""
        self.cluster.set_health(self.cluster.row(name), device, healthy=healthy)
        self.state.freed()

    def set_queues(self, specs: Iterable[QueueSpec]) -> None:
        """Replace the tree. Raises CalabashError when a queue with jobs would vanish."""
        self.tree.replace(specs)
        self.state.freed()

    # ---- decisions ------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Note the time before an event that happened then, so that past use is counted exactly."""
        self.state.advance(now_s)

    def cycle(self, now_s: float) -> tuple[Decision, ...]:
        """Decide everything that can be decided now, or with a limit as much as its time allows: then another cycle is due at
        once, see ``rounds``. A cycle that would decide nothing is skipped; see ``unchanged``."""
        self.state.advance(now_s)
        if self._round is not None:
            self._memory.resume()
        elif self._memory.holds():
            self._looked_at_s = self.state.now_s
            return ()
        else:
            self._round = SchedulingRound(self._limit)
            self._memory.begin()
        of = self._round
        try:
            decisions = Cycle(self.state, of).run()
        except BaseException:
            self._round = None
            self._look_again()
            raise
        if of.complete:
            self._round = None
            self._memory.end()
            self._look_again(changed=self._memory.has_changed())
            self._looked_at_s = self.state.now_s
        else:
            self._memory.pause()
        return decisions

    def decide(self, request_id: str, now_s: float) -> tuple[Decision, ...]:
        """Decide about one request (with its gang) that was submitted since the last cycle.

        A surplus member of a gang is decided after the members that start together. When something was freed since the last
        cycle, others that wait have the right to it, and the whole cycle runs. Raises CalabashError when the id is unknown.
        """
        gang = self.registry.gang_of(request_id)
        decisions: list[Decision] = []
        portion = portion_of(gang, request_id)
        self.state.advance(now_s)
        if portion and self._round is None:
            self._memory.forget()  # the request may be promised a start, which the next cycle may promise another
        overdue = any(
            r.start_s <= self.state.now_s for r in self.state.reservations
        )  # it is promised another start first
        if portion and portion.waits_for_core and self._round is None and not self.state.unsettled and not overdue:
            decisions += Cycle(self.state).run_one(first_of(gang))
            self._look_again()
            portion = portion_of(gang, request_id)
        if self.state.unsettled or self._round is not None or overdue:
            return (*decisions, *self.cycle(now_s))
        if portion:
            decisions += Cycle(self.state).run_one(portion)
            self._look_again()
        return tuple(decisions)

    def _look_again(self, *, changed: bool = True) -> None:
        """Note when the next cycle is due after these decisions; ``changed``: they changed something."""
        since_s = self._looked_at_s if changed else self.state.now_s
        settled = not self.registry.queued or self._memory.is_settled()
        self._again_at_s = None if settled else max(self.state.now_s, since_s + LOOK_AGAIN_S)

    @property
    def unfinished(self) -> bool:
        """True if the last cycle has not looked at everything, because its time was over."""
        return self._round is not None

    def wake_at_s(self) -> float | None:
        """Return when a cycle is due at the latest: now if something was freed or the last cycle has not looked at everything;
        at once or soon if the last decisions changed something; else when time alone may change a decision. None: when
        something happens."""
        if self.state.unsettled or self._round is not None:
            return self.state.now_s
        if not self.registry.queued:
            return None
        if self._again_at_s is None:
            moment_s = self._memory.moment_s()
            return moment_s if moment_s < math.inf else None
        hold_s = self.state.options.reservation_hold_s
        times = [*(r.start_s for r in self.state.reservations), *self.state.passed.values()]
        times += [at_s for r in self.state.reservations if (at_s := r.lapses_at_s(hold_s)) is not None]
        return min([self._again_at_s, *(at_s for at_s in times if at_s > self._looked_at_s)])

    def why(self, request_id: str, now_s: float) -> Explanation:
        """Why a request waits. Raises CalabashError when it does not."""
        if self.registry.running(request_id) is not None:
            raise CalabashError(f"{request_id} is running", reason=Reason.CONFLICT, hint="nothing to explain")
        gang = self.registry.gang_of(request_id)
        self.state.advance(now_s)
        return Why(self.state).waiting(gang, request_id)

    def snapshot(self) -> Snapshot:
        """Return a frozen copy of nodes, queues, and what waits and runs."""
        gangs = self.registry.gangs.values()
        return Snapshot(
            nodes=tuple(self.specs.values()),
            cordoned=tuple(name for name, row in self.cluster.row_of.items() if not self.cluster.schedulable[row]),
            queues=self.tree.form.specs,
            options=self.state.options,
            waiting=tuple(request for gang in gangs for request in gang.waiting.values()),
            running=tuple(running for gang in gangs for running in gang.running.values()),
            now_s=self.state.now_s,
            standing=tuple(
                (self.cluster.names[row], device, instances)
                for (row, device), instances in self.cluster.mig_instances.items()
            ),
        )
