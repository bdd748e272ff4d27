"""The scheduler: takes events of requests, nodes and queues, and returns decisions.

``Scheduler`` is the public interface of one ``SchedulerState``: the resident cluster, the queue tree and the registry of
requests. Callers report events (a request was submitted or has ended, a node was added or removed) and call ``cycle``, or
``decide`` for one request. When these return, the state contains the effects of the decisions already. Time is the ``now_s``
argument, on any clock of the caller. The class does no I/O and starts no threads; the standalone pool, the Kubernetes planner
and the simulator use it alike.

| event | effect |
|---|---|
| ``submit`` | the request waits in its queue; its demand counts for fair shares |
| ``cycle`` | ``Bind``: runs from now on; ``Evict``: waits again; ``Move``: runs elsewhere; ``Defer``: waits |
| ``decide`` | as ``cycle``, but for one request, at the cost of one attempt if nothing was freed since the last cycle |
| ``adopt`` | the request runs already (restart of the caller, placements of others) |
| ``finished`` | the request has ended or was cancelled; its devices are free |
| ``unbind`` | a bind could not be carried out: the request waits again, with its former position in the queue |
| node events | the capacity changes; the requests of a removed node wait again |

The caller carries decisions out in order: evictions and moves first, a ``Bind`` when all requests of its ``after`` have
stopped. A caller that uses ``decide`` for submitted requests calls ``cycle`` after all other events, and at the latest at
``wake_at_s``.

A start may change the order of the queues, the units that are in quota, and the reservations. So a request that was refused
earlier in a cycle may start in the next one. Where this is known, another cycle is due at once. It cannot always be known,
because searches for placements and victims are bounded. So after each cycle or ``decide`` that changed something another cycle
is due, until one decides nothing: at once if the last complete round is ``RECHECK_S`` ago, else when that time has passed. A
caller that runs a cycle every second needs no additional cycles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from calabash.model.errors import CalabashError, Reason
from calabash.sched.cluster.scoring import PlacementPolicy
from calabash.sched.cluster.shape import NodePlacement
from calabash.sched.cluster.spec import NodeSpec
from calabash.sched.cycle import Cycle
from calabash.sched.cycle_memory import CycleMemory
from calabash.sched.decisions import Decision, Explanation, Options, Request, Running
from calabash.sched.explain.explainer import Explainer
from calabash.sched.explain.verdicts import Verdicts
from calabash.sched.policies.registry import policy_named
from calabash.sched.queues.gang import start_group_of
from calabash.sched.queues.spec import QueueSpec
from calabash.sched.rounds import CycleLimit, SchedulingRound
from calabash.sched.scheduling_order import first_start_group
from calabash.sched.snapshot import Snapshot
from calabash.sched.state import SchedulerState
from calabash.sched.topology import check_levels

DEFAULT_POLICY = "pgb-online"
RECHECK_S = 1.0  # longest wait for the cycle that is due after one that changed something


class Scheduler:
    """Scheduler of one cluster.

    Args:
        nodes: initial nodes; ``add_node`` and ``remove_node`` change them.
        queues: the queue tree; requests name its leaves.
        policy: placement policy, or its name as in ``policies.registry``.
        gpus_per_node_max: most devices of a node that is added later; 0 for as many as the largest of ``nodes`` has.
        limit: time limit of one cycle; None if a cycle attempts everything.
        levels: names of the levels of the network, outermost first, to which ``NodeSpec.domains`` refer.
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
        levels: Sequence[str] = (),
    ) -> None:
        check_levels(levels)
        self.policy = policy_named(policy) if isinstance(policy, str) else policy
        self.state = SchedulerState(
            nodes,
            queues,
            policy=self.policy,
            options=options or Options(),
            gpus_per_node_max=gpus_per_node_max,
            levels=levels,
        )
        self.verdicts = Verdicts(self.state.placer)
        self._memory = CycleMemory(self.state)
        self._limit = limit
        self._round: SchedulingRound | None = None  # the round that is not complete
        self._completed_at_s = -math.inf  # end of the last complete round
        self._recheck_at_s: float | None = None  # due time of the next cycle, if the last decisions changed something
        self.cluster = self.state.cluster
        self.placer = self.state.placer
        self.tree = self.state.tree
        self.registry = self.state.registry
        self.specs = {spec.name: spec for spec in nodes}

    # ---- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Add a waiting request to its queue.

        Raises:
            CalabashError: the queue does not exist or is not a leaf, or the ID is in use.
        """
        self.state.enqueue(request)
        self.placer.engine.observe(request.shape)

    def finished(self, request_id: str) -> None:
        """Remove a request that has ended or was cancelled.

        Raises:
            CalabashError: the ID is unknown.
        """
        self.state.remove(request_id)

    def adopt(
        self, request: Request, *, node: str = "", placement: NodePlacement | None = None, started_at_s: float
    ) -> Running:
        """Add a request that runs already.

        Args:
            placement: devices on which the request runs; None to choose the best placement.
            node: node for the choice if ``placement`` is None; "" for any node.

        Raises:
            CalabashError: the placement is not free, or no placement was found. Nothing is changed then.
        """
        if placement is None:
            placer = self.placer
            placement = (
                placer.choose_on(request.shape, self.cluster.row(node)) if node else placer.choose(request.shape)
            )
            if placement is None:
                raise CalabashError(
                    f"request {request.id} does not fit {'on node ' + node if node else 'on any node'}",
                    reason=Reason.NO_CAPACITY,
                    hint="remove requests that have ended first",
                )
        self.submit(request)
        try:
            self.cluster.place(request.shape, placement, held=True)
        except CalabashError:
            self.state.remove(request.id)
            raise
        return self.state.start(request, placement, started_at_s)

    def unbind(self, request_id: str) -> None:
        """Change a running request back to waiting, because its bind failed. Does nothing if it does not run."""
        if self.registry.running(request_id) is not None:
            running = self.state.stop(request_id)
            self.cluster.release(running.request.shape, running.placement)
            self.state.owners.undo_start(running.request.queue, running.request.behalf)

    # ---- nodes and queues -----------------------------------------------------------------------------------------

    def add_node(self, spec: NodeSpec) -> None:
        self.cluster.add_node(spec)
        self.specs[spec.name] = spec
        self.state.count_capacity(self.cluster.removed)

    def remove_node(self, name: str) -> tuple[str, ...]:
        """Remove a node. The requests that ran there wait again; returns their IDs."""
        row = self.cluster.row(name)
        lost = tuple(self.registry.on_node.get(row, ()))
        for request_id in lost:
            self.unbind(request_id)
        self.cluster.remove_node(row)
        self.cluster.cordon(row)
        self.specs.pop(name, None)
        self.state.count_capacity(self.cluster.removed)
        return lost

    def cordon(self, name: str, *, schedulable: bool = False) -> None:
        """Set whether new requests may be placed on a node. Running requests are not affected."""
        self.cluster.cordon(self.cluster.row(name), schedulable=schedulable)
        self.state.freed()

    def set_health(self, name: str, device: int, *, healthy: bool) -> None:
        """Set whether new requests may be placed on a device. Running requests are not affected."""
        self.cluster.set_health(self.cluster.row(name), device, healthy=healthy)
        self.state.freed()

    def set_levels(self, levels: Sequence[str], paths: Mapping[str, Sequence[str]]) -> None:
        """Replace the levels of the network, and the paths of all nodes. Running requests are not affected.

        Args:
            levels: names of the levels, outermost first.
            paths: names of the domains of each node, outermost first, by name of the node.

        Raises:
            CalabashError: a level is not named, is named twice, or has the name of the level of nodes.
        """
        check_levels(levels)
        self.cluster.set_levels(levels, paths)
        for name in self.specs:
            self.specs[name] = replace(self.specs[name], domains=tuple(paths.get(name, ())))
        self.state.freed()

    def set_queues(self, specs: Iterable[QueueSpec]) -> None:
        """Replace all queues.

        Raises:
            CalabashError: see ``QueueTree.replace``. Nothing is changed then.
        """
        self.tree.replace(specs)
        self.state.freed()

    # ---- past use -------------------------------------------------------------------------------------------------

    def count_use(self, now_s: float) -> None:
        """Count the use until now as past use. Call it before each event that ends or starts a request.

        Does nothing without a half-life. Unlike ``advance``, it does not set the time of decisions.
        """
        self.tree.advance(now_s)

    def restore_past_use(self, past: Mapping[str, float], at_s: float) -> None:
        """Set the past use of queues in device-seconds as it was at ``at_s``. Call it once the running requests are adopted.

        What runs is counted from ``at_s`` on.
        """
        self.tree.restore_past(past, at_s)
        self.state.freed()

    # ---- decisions ------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Set the current time before an event is reported, so that past use is counted exactly."""
        self.state.advance(now_s)

    def cycle(self, now_s: float) -> tuple[Decision, ...]:
        """Attempt the waiting requests and return the decisions.

        With a time limit the cycle may leave some requests to the next cycle, which is due at once then; see ``rounds``. A
        cycle that would decide nothing is skipped; see ``cycle_memory``.
        """
        self.state.advance(now_s)
        if self._round is not None:
            self._memory.resume()
        elif self._memory.holds():
            self._completed_at_s = self.state.now_s
            return ()
        else:
            self._round = SchedulingRound(self._limit)
            self._memory.begin()
        round_ = self._round
        try:
            decisions = Cycle(self.state, self.verdicts, round_).run()
        except BaseException:
            self._round = None
            self._set_recheck_time()
            raise
        if round_.complete:
            self._round = None
            self._memory.end()
            self._set_recheck_time(changed=self._memory.has_changed())
            self._completed_at_s = self.state.now_s
        else:
            self._memory.pause()
        return decisions

    def decide(self, request_id: str, now_s: float) -> tuple[Decision, ...]:
        """Attempt one request that was submitted since the last cycle, with its gang, and return the decisions.

        A surplus member is attempted after the core of its gang. If something was freed since the last cycle, other waiting
        requests may be entitled to it, and a whole cycle runs.

        Raises:
            CalabashError: the ID is unknown.
        """
        gang = self.registry.gang_of(request_id)
        decisions: list[Decision] = []
        start_group = start_group_of(gang, request_id)
        self.state.advance(now_s)
        if start_group and self._round is None:
            self._memory.clear()  # the request may get a reservation, which the next cycle may give to another
        # A reservation whose start has passed gets a new start first.
        overdue = any(r.start_s <= self.state.now_s for r in self.state.reservations)
        if (
            start_group
            and start_group.waits_for_core
            and self._round is None
            and not self.state.unsettled
            and not overdue
        ):
            decisions += Cycle(self.state, self.verdicts).run_one(first_start_group(gang))
            self._set_recheck_time()
            start_group = start_group_of(gang, request_id)
        if self.state.unsettled or self._round is not None or overdue:
            return (*decisions, *self.cycle(now_s))
        if start_group:
            decisions += Cycle(self.state, self.verdicts).run_one(start_group)
            self._set_recheck_time()
        return tuple(decisions)

    def _set_recheck_time(self, *, changed: bool = True) -> None:
        """Set the time of the cycle that is due after the last decisions.

        Args:
            changed: the last decisions started, stopped or moved a request, so that another cycle may decide more.
        """
        since_s = self._completed_at_s if changed else self.state.now_s
        settled = not self.registry.queued or self._memory.is_settled()
        self._recheck_at_s = None if settled else max(self.state.now_s, since_s + RECHECK_S)

    @property
    def unfinished(self) -> bool:
        """Return True if the last cycle left requests without an attempt because of its time limit."""
        return self._round is not None

    def wake_at_s(self) -> float | None:
        """Return the time at which the next cycle is due if no event comes before; None if only an event makes one due.

        The first of these rules that applies gives the time:

        * something was freed, or the last cycle left requests to the next one: the current time;
        * the last decisions changed something: within ``RECHECK_S``;
        * otherwise: the first time at which time alone may change a decision.
        """
        if self.state.unsettled or self._round is not None:
            return self.state.now_s
        if not self.registry.queued:
            return None
        if self._recheck_at_s is None:
            change_time_s = self._memory.change_time_s()
            return change_time_s if change_time_s < math.inf else None
        hold_s = self.state.options.reservation_hold_s
        times = [*(r.start_s for r in self.state.reservations), *self.state.passed.values()]
        times += [at_s for r in self.state.reservations if (at_s := r.expires_at_s(hold_s)) is not None]
        return min([self._recheck_at_s, *(at_s for at_s in times if at_s > self._completed_at_s)])

    def explain(self, request_id: str, now_s: float) -> Explanation:
        """Explain why a request waits.

        Raises:
            CalabashError: the request runs already, or its ID is unknown.
        """
        if self.registry.running(request_id) is not None:
            raise CalabashError(
                f"request {request_id} is running", reason=Reason.CONFLICT, hint="only waiting requests are explained"
            )
        gang = self.registry.gang_of(request_id)
        self.state.advance(now_s)
        return Explainer(self.state, self.verdicts).waiting(gang, request_id)

    def snapshot(self) -> Snapshot:
        """Return a frozen copy of the nodes, queues, and waiting and running requests."""
        gangs = self.registry.gangs.values()
        return Snapshot(
            nodes=tuple(self.specs.values()),
            cordoned=tuple(name for name, row in self.cluster.row_of.items() if not self.cluster.schedulable[row]),
            queues=self.tree.form.specs,
            options=self.state.options,
            levels=self.cluster.levels,
            waiting=tuple(request for gang in gangs for request in gang.waiting.values()),
            running=tuple(running for gang in gangs for running in gang.running.values()),
            now_s=self.state.now_s,
            standing=tuple(
                (self.cluster.names[row], device, instances)
                for (row, device), instances in self.cluster.mig_instances.items()
            ),
        )
