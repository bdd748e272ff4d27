"""Thread that detects over-use of limits and budgets and carries out the consequences.

The consequences are journal events, audit lines, best-effort shares, and the end of allocations.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import structlog

from calabash.adapters.clock import Clock
from calabash.binder.local.binder import Binder
from calabash.model.audit import AuditLine
from calabash.model.errors import CalabashError, Reason
from calabash.model.money import Money
from calabash.model.request import AllocationId
from calabash.node.agent import NodeAgent
from calabash.node.processes.unmanaged import UnmanagedProcess
from calabash.node.snapshot import DeviceSnapshot, NodeSnapshot
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.billing.service import Billing
from calabash.platform.tenancy.store import TenancyStore
from calabash.pool.overuse.policy import (
    HeldUse,
    OverUseAnswer,
    OverUseFinding,
    OverUseState,
    PolicyOf,
    TenantUse,
    judge_use,
)

PERIOD_S = 1.0

log = structlog.get_logger(__name__)


class OverUseWatch:
    """Thread that checks for over-use every PERIOD_S seconds. ``require_within`` may be called from any thread.

    Args:
        agent: the agent of the node, whose allocations are checked.
        binder: withdraws waiting requests of tenants that get no new slices.
        tenancy: the tenants with their limits and budgets.
        billing: what the tenants have spent.
        policy_of: returns the over-use policy of a tenant.
        audit: the audit log.
        clock: the clock.
        told: called with the kind of an event and its finding: ``over_use``, ``taken_back``, ``share_lowered``,
            ``share_restored``.
    """

    def __init__(
        self,
        *,
        agent: NodeAgent,
        binder: Binder,
        tenancy: TenancyStore,
        billing: Billing,
        policy_of: PolicyOf,
        audit: AuditTrail,
        clock: Clock,
        told: Callable[[str, OverUseFinding], None] = lambda _kind, _finding: None,
    ) -> None:
        self._agent, self._binder, self._policy_of = agent, binder, policy_of
        self._tenancy, self._billing = tenancy, billing
        self._audit, self._clock, self._told = audit, clock, told
        self._state = OverUseState()
        self._held_back: Mapping[str, OverUseFinding] = {}
        self._unmanaged: frozenset[UnmanagedProcess] = frozenset()
        self._taken: set[str] = set()
        self._lowered: bool | None = None  # True if the last round lowered shares; None: before the first round
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="over-use", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def require_within(self, tenant: str) -> None:
        """Raise BUDGET_SPENT or QUEUE_OVER_LIMIT for a tenant that gets no new slices."""
        finding = self._held_back.get(tenant)
        if finding is not None:
            raise _refusal(finding)

    def check(self) -> None:
        """Run one round: detect over-use and carry out its consequences."""
        people, policy_of = self._tenancy.people(), functools.cache(self._policy_of)
        tenants = [
            TenantUse(name=t.name, limit=t.limit, budget=t.budget, spent=self._spent_by(t.name) if t.budget else None)
            for t in people.tenants.values()
        ]
        bounded = {t.name for t in tenants if t.limit is not None or t.budget is not None}
        judged = [
            record.id
            for record in self._agent.records()
            if record.request.tenant in bounded or policy_of(record.request.tenant).idle is not OverUseAnswer.OFF
        ]
        held = list(_held(self._agent.snapshot(only=frozenset(judged)))) if judged else []
        self._state, verdict = judge_use(self._state, policy_of, tenants, held, now_s=self._clock.monotonic_ns() / 1e9)
        for finding in verdict.to_report:
            self._report("over_use", finding)
        self._held_back = dict(verdict.held_back)
        for waiting in self._binder.waiting() if self._held_back else ():
            held_back = self._held_back.get(waiting.request.tenant)
            if held_back is not None:
                self._binder.withdraw(waiting, why=held_back.message, error=_refusal(held_back))
        if verdict.lowered or self._lowered is not False:  # an earlier pool may have lowered some
            self._lower(verdict.lowered)
        self._lowered = bool(verdict.lowered)
        for finding in verdict.take_back:
            if finding.allocation not in self._taken:
                self._agent.end(AllocationId(finding.allocation), reason=finding.reason, explanation=finding.message)
                self._report("taken_back", finding)
        self._taken = {finding.allocation for finding in verdict.take_back}
        self._audit_unmanaged(self._agent.devices())

    def _lower(self, lowered: Mapping[AllocationId, OverUseFinding]) -> None:
        """Lower the shares of these allocations to best-effort, restore all others, and report both."""
        fell, rose = self._agent.administration.lower_shares(lowered)
        for allocation in fell:
            finding = lowered[allocation]
            message = f"the share of {allocation} is best-effort while {finding.message}"
            self._report("share_lowered", replace(finding, allocation=allocation, message=message))
        for allocation in rose:
            record = self._agent.record(allocation)
            if record is not None:
                tenant = record.request.tenant
                restored = OverUseFinding(
                    key=f"restored {allocation}",
                    tenant=tenant,
                    reason=Reason.OVER_USE,
                    allocation=allocation,
                    message=f"the share of {allocation} is the granted one again",
                )
                self._report("share_restored", restored)

    def _spent_by(self, tenant: str) -> Money | None:
        found = self._billing.spent(tenant)
        return None if found is None else found.money

    def _report(self, kind: str, finding: OverUseFinding) -> None:
        self._agent.event(kind, reason=finding.reason, allocation=finding.allocation, message=finding.message)
        self._audit.add(
            AuditLine(
                at=0.0,
                user="pool",
                tenant=finding.tenant,
                action=kind,
                target=finding.allocation or finding.tenant,
                reason=f"{finding.reason}: {finding.message}",
            )
        )
        self._told(kind, finding)

    def _audit_unmanaged(self, devices: Iterable[DeviceSnapshot]) -> None:
        """Write an audit line for each new unmanaged process. The agent applies the policy for such processes."""
        present = frozenset(found for device in devices for found in device.unmanaged)
        known = {(s.device, s.process) for s in self._unmanaged}
        for found in present:
            if (found.device, found.process) not in known:
                self._audit.add(
                    AuditLine(
                        at=0.0,
                        user="pool",
                        origin=f"uid {found.uid} pid {found.process.pid}",
                        action="stranger",
                        target=found.device,
                        reason=f"{Reason.STRANGER}: {found.command[:64]} without a slice, {found.used_mib} MiB",
                    )
                )
        self._unmanaged = present

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.check()
            except CalabashError as error:
                log.warning("cannot check for over-use now", error=error.message)
            except Exception:
                log.exception("checking for over-use failed and will be repeated")


def _held(node: NodeSnapshot) -> Iterator[HeldUse]:
    memory_mib = {d.device.uuid: d.device.memory_mib for d in node.devices}
    for one in node.allocations:
        if one.ending:
            continue
        parts = one.record.placement.slices
        yield HeldUse(
            allocation=one.record.id,
            tenant=one.record.request.tenant,
            devices=sum(
                min(1.0, max(p.core_percent / 100, p.memory_mib / max(1, memory_mib.get(p.device, 1)))) for p in parts
            ),
            idle_s=min((use.idle_s for use in one.use), default=0.0),
            granted_at=one.record.granted_at,
        )


def _refusal(finding: OverUseFinding) -> CalabashError:
    return CalabashError(
        finding.message, reason=finding.reason, hint="an administrator of the pool may raise its budget or its limit"
    )
