"""The pool of one machine: submit requests, use and release allocations, with permission checks.

The scheduler decides on requests and the binder carries its decisions out; this module checks permissions and limits before
that, and explains decisions to users. All methods are synchronous and safe for threads: the HTTP layer calls them in worker
threads and awaits the future of a waiting request.
"""

from __future__ import annotations

from dataclasses import dataclass

from calabash.adapters.host.processes import Process, identify, owner, user_name
from calabash.adapters.store import Store
from calabash.api import requests
from calabash.binder.local.binder import Binder
from calabash.binder.local.requests import Requester, WaitingRequest
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, UserName
from calabash.model.request import AllocationId
from calabash.model.tenancy import Principal
from calabash.node.agent import NodeAgent
from calabash.platform.access.caller import Caller
from calabash.platform.access.permission import Permission, not_found
from calabash.platform.access.tenancy_changes import TenancyChanges
from calabash.platform.access.tokens import Tokens
from calabash.platform.access.visibility import Held, Visibility
from calabash.platform.billing.service import Billing
from calabash.platform.tenancy.owners import AllocationOwners
from calabash.platform.tenancy.store import TenancyStore
from calabash.pool.kept_allocations import StandingAllocations
from calabash.pool.networks.fabric import FabricHolds
from calabash.pool.networks.ports import TenantPorts
from calabash.pool.overuse.watcher import OverUseWatch
from calabash.pool.past_use import PastUseKeeper
from calabash.pool.queues import Queues
from calabash.pool.requests.entry import EntryBounds
from calabash.pool.requests.explanations import Explanations
from calabash.scenario import dump_scenario


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """The pool of this machine. ``wiring.build_pool`` creates its parts, each of which is described by its class."""

    agent: NodeAgent
    store: Store
    permission: Permission
    tenancy: TenancyStore
    tokens: Tokens
    changes: TenancyChanges
    owners: AllocationOwners
    queues: Queues
    past_use: PastUseKeeper
    billing: Billing
    binder: Binder
    explanations: Explanations
    standing: StandingAllocations
    fabric: FabricHolds
    entry: EntryBounds
    ports: TenantPorts
    over_use: OverUseWatch

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, wanted: requests.AllocationRequest, caller: Caller) -> WaitingRequest:
        """Add a request to its queue and schedule at once.

        Raises CalabashError if the caller lacks permission, if the request can never be granted, or if it cannot be granted
        now and does not wait. If programs of other allocations have just ended, their devices may become free in a moment: a
        request that does not wait then stays queued, and the caller calls ``refuse`` if it is not granted soon.
        """
        who = caller.principal
        request = self.entry.admit(wanted, who)
        self.over_use.require_within(request.tenant)
        requester = Requester(uid=who.uid, user=who.user, process=caller.process)
        with self.entry.joining(request, who):
            waiting = self.binder.submit(
                request, requester=requester, command=tuple(wanted.command), wait=wanted.wait_s > 0
            )
        waiting.answer.add_done_callback(lambda _: self.entry.left(request, who))
        if waiting.answer.done() or self.binder.is_placed(waiting):
            return waiting
        try:
            told = self.explanations.refusal(waiting)
        except CalabashError:  # granted in the meantime
            return waiting
        if told.overtaken and wanted.wait_s <= 0:
            self.binder.schedule()
            if waiting.answer.done() or self.binder.is_placed(waiting):
                return waiting
        if wanted.wait_s <= 0:
            if not self.agent.has_ended_programs():
                self.refuse(waiting)
            return waiting
        self.agent.event("pending", reason=told.reason, allocation=waiting.id, message=told.message)
        return waiting

    def refuse(self, waiting: WaitingRequest) -> None:
        """Withdraw a request whose client does not wait; raise CalabashError with the reason why it was not granted.

        Does nothing if the request was granted in the meantime.
        """
        try:
            told = self.explanations.refusal(waiting)
        except CalabashError:
            return
        if self.binder.withdraw(waiting, why="the request does not wait"):
            raise told.error()

    def cancel(self, waiting: WaitingRequest, *, why: str) -> bool:
        """Withdraw a request whose client has disconnected or timed out; return False if it was answered before.

        Args:
            why: explanation for the journal.
        """
        if not self.binder.withdraw(waiting, why=why):
            return False
        self.agent.event("cancelled", allocation=waiting.id, message=why)
        return True

    def give_back(self, waiting: WaitingRequest, *, why: str) -> None:
        """End an allocation that its client cannot use, for example because the client has disconnected.

        Args:
            why: explanation for the journal.
        """
        self.agent.end(waiting.id, reason="cancelled", explanation=why)

    # -- allocations --------------------------------------------------------------------------------------------

    def enter(self, allocation: AllocationId, process: Process | None) -> AllocationRecord:
        """Make the requesting process the program of an allocation. Raises CalabashError if the process has ended.

        Args:
            process: the requesting process; None if it could not be identified.
        """
        if process is None:
            raise CalabashError("the requesting process cannot be identified", reason=Reason.NOT_FOUND)
        return self.agent.enter(allocation, process)

    def started(self, allocation: AllocationId, *, pid: int, caller: Caller) -> AllocationRecord:
        """Make a process of the caller the program of an allocation. Raises NOT_FOUND, NOT_PERMITTED.

        Args:
            pid: the process; it must belong to the caller, unless the caller is root.
        """
        self.permission.require_process(caller.principal, "start the program of an allocation")
        self._require_owner(caller, self._held(allocation))
        program = identify(pid)
        if program is None:
            raise CalabashError(f"process {pid} has ended", reason=Reason.NOT_FOUND)
        if owner(program) != caller.peer.uid and caller.peer.uid != 0:
            message = f"process {pid} does not belong to {user_name(caller.peer.uid)}"
            raise CalabashError(message, reason=Reason.NOT_PERMITTED)
        return self.agent.enter(allocation, program)

    def renew(self, allocation: AllocationId, *, caller: Caller) -> float:
        """Renew a standing allocation, which has no program on this machine and otherwise expires.

        Return the seconds for which it is kept now; 0 if it is kept until it is released.
        """
        self._require_owner(caller, record := self._held(allocation))
        return self.standing.renew(record)

    def release(self, allocation: AllocationId, *, caller: Caller, force: bool) -> str:
        """Release an allocation or withdraw a request; return its state, ``ending`` or ``released``.

        Raises CONFLICT if a process other than the caller uses the allocation and ``force`` is false.
        """
        who = caller.principal
        waiting = self.binder.find(allocation)
        if waiting is not None:
            asker, request = waiting.requester, waiting.request
            self.permission.require_owner(
                who, allocation, uid=asker.uid, user=asker.user, tenant=request.tenant, queue=request.queue
            )
            message = Message("request {request} was cancelled by {user}", request=allocation, user=UserName(who.user))
            error = CalabashError(message, reason=Reason.CONFLICT, hint="ask again")
            if self.binder.withdraw(waiting, why=message, error=error):
                return "released"
        self._require_owner(caller, self._held(allocation))
        itself = caller.peer.pid if who.local else 0
        others = [p for p in processes_of(self.agent, allocation) if p.pid != itself]
        if others and not force:
            raise CalabashError(
                f"{allocation} is used by {_named(others)}",
                reason=Reason.CONFLICT,
                hint="end them, or release it with force",
            )
        # A program that releases its own allocation is not killed.
        by = Message("released by {user}", user=UserName(who.user))
        self.agent.end(allocation, reason="released", explanation=by, gently=not others and not force)
        return "ending" if self.agent.record(allocation) is not None else "released"

    def still_held_error(self, allocation: AllocationId) -> CalabashError:
        """Build the error for an allocation that was forcibly released but is still held; it names the processes."""
        found = processes_of(self.agent, allocation)
        holders = f" by {_named(found)}" if found else ", by a process that the pool cannot see"
        return CalabashError(
            f"{allocation} is still held{holders}",
            reason=Reason.CONFLICT,
            hint="it is freed when these processes end: end them, or ask root to do so",
        )

    def close(self, *, force: bool) -> None:
        """End all requests and allocations for the shutdown of the pool.

        Raises CONFLICT if ``force`` is false and there is an allocation, or a server that listens on a port.
        """
        running = self.agent.records()
        if running and not force:
            held = "1 allocation is" if len(running) == 1 else f"{len(running)} allocations are"
            raise CalabashError(
                f"{held} held: {', '.join(r.id for r in running[:5])}",
                reason=Reason.CONFLICT,
                hint="wait for them; `calabash down --keep-programs` lets them continue, --force ends them",
            )
        self.ports.places.close_all(force=force)
        for waiting in self.binder.close():
            waiting.resolve(CalabashError("the pool went down", reason=Reason.POOL_DOWN, hint="start it: calabash up"))
        for record in self.agent.records():
            self.agent.end(record.id, reason="shutdown", explanation="the pool was taken down with force")

    def _require_owner(self, caller: Caller, record: AllocationRecord) -> None:
        request = record.request
        self.permission.require_owner(
            caller.principal, record.id, uid=record.uid, user=record.user, tenant=request.tenant, queue=request.queue
        )

    def _held(self, allocation: AllocationId) -> AllocationRecord:
        record = self.agent.record(allocation)
        if record is None:
            raise not_found(allocation)
        return record

    # -- views -------------------------------------------------------------------------------------------------

    def visibility(self, who: Principal) -> Visibility:
        """Return the visibility of a principal."""
        return Visibility(
            who,
            people=self.tenancy.people(),
            live=lambda: _live(self.agent, self.binder),
            queues=self.queues.records(),
            owner=self.owners.owner_of,
            permission=self.permission,
        )

    def scenario(self) -> str:
        """Return the scheduler's present state as a scenario file that can be replayed elsewhere."""
        with self.binder.reading() as scheduler:
            snapshot = scheduler.scheduler.snapshot()
        return dump_scenario(snapshot, rule=f"the pool of {self.agent.node} as it was")


def processes_of(agent: NodeAgent, allocation: AllocationId) -> list[Process]:
    """Return the processes of one allocation. The cost does not depend on the number of other allocations."""
    found = agent.snapshot(processes=True, only=[allocation]).allocations
    return next((list(a.processes) for a in found if a.record.id == allocation), [])


def _live(agent: NodeAgent, binder: Binder) -> list[Held]:
    """Return all allocations and waiting requests."""
    held: list[Held] = [(r.id, r.request, r.uid, r.user) for r in agent.records()]
    held += [(w.id, w.request, w.requester.uid, w.requester.user) for w in binder.waiting()]
    return held


def _named(processes: list[Process]) -> str:
    """Return a text like ``2 processes (pid 4711 of ann, pid 4712 of ann)``."""
    some = ", ".join(f"pid {p.pid} of {user_name(owner(p))}" for p in processes[:5])
    more = ", ..." if len(processes) > 5 else ""
    return f"{len(processes)} process{'es' if len(processes) != 1 else ''} ({some}{more})"
