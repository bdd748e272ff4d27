"""Detect exceeded limits, spent budgets and idle slices, and decide on the consequences. Pure functions.

Theory of operation. The input of a round is what each tenant holds and has spent, and the idle time of each allocation. Each
case of over-use is a *finding* with a key that is the same as long as the case lasts: it is reported when its key is new, and
dropped when the case is over. The tenant's policy sets the consequence: none, a report, no new slices, best-effort shares while
the case lasts, or the end of allocations after ``notice_s`` seconds. If a tenant exceeds its limit, its newest allocations are
ended, until the others are within the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from calabash.model.errors import Reason
from calabash.model.money import Money
from calabash.model.request import AllocationId


class OverUseAnswer(StrEnum):
    """Consequence of over-use; each one includes those before it.

    OFF: none. TELL: it is reported. HOLD: the tenant gets no new slices. LOWER: its slices get best-effort shares. RETURN:
    allocations are ended.
    """

    OFF = "off"
    TELL = "tell"
    HOLD = "hold"
    LOWER = "lower"
    RETURN = "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverUsePolicy:
    """Over-use policy of one tenant.

    Args:
        budget: consequence of a spent budget.
        budget_warn_ratio: fraction of the budget, 0 to 1; a warning is reported when the tenant has spent so much.
        limit: consequence of an exceeded limit.
        idle: consequence for an allocation without GPU time for ``idle_s`` seconds; HOLD and LOWER are treated as TELL.
        notice_s: seconds between a finding and the end of allocations.
    """

    budget: OverUseAnswer = OverUseAnswer.HOLD
    budget_warn_ratio: float = 0.8
    limit: OverUseAnswer = OverUseAnswer.TELL
    idle: OverUseAnswer = OverUseAnswer.OFF
    idle_s: float = 1800.0
    notice_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """Limit, budget and spending of a tenant.

    Args:
        limit: greatest number of devices; None: no limit.
        budget: budget of one month; None: no budget.
        spent: cost of the usage of this month; None if it is unknown.
    """

    name: str
    limit: float | None = None
    budget: Money | None = None
    spent: Money | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUse:
    """Devices and idle time of one allocation.

    Args:
        devices: number of devices, where a slice counts as a fraction.
        idle_s: seconds since the allocation last used GPU time.
        granted_at: time of the grant, in seconds since the epoch.
    """

    allocation: AllocationId
    tenant: str
    devices: float
    idle_s: float
    granted_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverUseFinding:
    """One case of over-use.

    Args:
        key: identifies the case as long as it lasts.
        reason: the limit that is exceeded.
        allocation: the allocation; "" if the case concerns the whole tenant.
        answer: consequence of the case.
    """

    key: str
    tenant: str
    reason: Reason
    message: str
    allocation: str = ""
    answer: OverUseAnswer = OverUseAnswer.TELL


@dataclass(frozen=True, slots=True, kw_only=True)
class OverUseState:
    """Cases of over-use that exist now, with their beginnings.

    Args:
        since_s: monotonic time in seconds at which each finding was first made, by the ``key`` of the finding.
    """

    since_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverUseVerdict:
    """Actions against over-use that one round of checks requires.

    Args:
        to_report: new findings to report.
        held_back: for each tenant that gets no new slices, by name, the finding that causes it.
        lowered: for each allocation whose shares become best-effort, the finding that causes it.
        take_back: findings that name the allocations to end.
    """

    to_report: tuple[OverUseFinding, ...] = ()
    held_back: Mapping[str, OverUseFinding] = field(default_factory=dict)
    lowered: Mapping[AllocationId, OverUseFinding] = field(default_factory=dict)
    take_back: tuple[OverUseFinding, ...] = ()


_HARD = frozenset({OverUseAnswer.HOLD, OverUseAnswer.LOWER, OverUseAnswer.RETURN})
PolicyOf = Callable[[str], OverUsePolicy]


def judge_use(
    state: OverUseState, policy_of: PolicyOf, tenants: Iterable[TenantUse], held: Sequence[HeldUse], *, now_s: float
) -> tuple[OverUseState, OverUseVerdict]:
    """Return the next state and the actions of a round.

    An allocation to be ended is in ``take_back`` of every round until it is not among ``held`` any more.

    Args:
        state: state after the previous round.
        policy_of: returns the policy of a tenant.
        held: allocations with their devices and idle times.
        now_s: monotonic time in seconds.
    """
    known = list(tenants)
    found = [f for tenant in known for f in _of_tenant(tenant, policy_of(tenant.name), held)]
    found += [f for one in held for f in _idle(one, policy_of(one.tenant))]
    since_s = {f.key: state.since_s.get(f.key, now_s) for f in found}
    held_back: dict[str, OverUseFinding] = {}
    lowered: dict[AllocationId, OverUseFinding] = {}
    take_back: dict[str, OverUseFinding] = {}
    limits = {tenant.name: tenant.limit for tenant in known}
    for finding in found:
        policy = policy_of(finding.tenant)
        if not finding.allocation and finding.answer in _HARD:
            held_back.setdefault(finding.tenant, finding)
        if not finding.allocation and finding.answer in _HARD - {OverUseAnswer.HOLD}:
            lowered |= {one.allocation: finding for one in held if one.tenant == finding.tenant}
        if finding.answer is OverUseAnswer.RETURN and now_s - since_s[finding.key] >= policy.notice_s:
            for allocation in _to_take(finding, limits.get(finding.tenant), held):
                take_back.setdefault(allocation, finding)
    return OverUseState(since_s=since_s), OverUseVerdict(
        to_report=tuple(f for f in found if f.key not in state.since_s),
        held_back=held_back,
        lowered=lowered,
        take_back=tuple(replace(finding, allocation=allocation) for allocation, finding in take_back.items()),
    )


def _of_tenant(tenant: TenantUse, policy: OverUsePolicy, held: Sequence[HeldUse]) -> Iterator[OverUseFinding]:
    devices = sum(one.devices for one in held if one.tenant == tenant.name)
    if tenant.limit is not None and devices > tenant.limit + 1e-9 and policy.limit is not OverUseAnswer.OFF:
        yield OverUseFinding(
            key=f"limit {tenant.name}",
            tenant=tenant.name,
            reason=Reason.QUEUE_OVER_LIMIT,
            message=f"tenant {tenant.name} holds {devices:g} devices, its limit is {tenant.limit:g}",
            answer=policy.limit,
        )
    if tenant.budget is None or tenant.spent is None or policy.budget is OverUseAnswer.OFF:
        return
    if tenant.spent.currency != tenant.budget.currency:
        return
    said = f"tenant {tenant.name} has spent {tenant.spent} of its budget of {tenant.budget} for this month"
    if tenant.spent.amount >= tenant.budget.amount:
        yield OverUseFinding(
            key=f"budget {tenant.name}",
            tenant=tenant.name,
            reason=Reason.BUDGET_SPENT,
            message=said,
            answer=policy.budget,
        )
    elif float(tenant.spent.amount) >= policy.budget_warn_ratio * float(tenant.budget.amount):
        yield OverUseFinding(key=f"warning {tenant.name}", tenant=tenant.name, reason=Reason.BUDGET_SPENT, message=said)


def _idle(one: HeldUse, policy: OverUsePolicy) -> Iterator[OverUseFinding]:
    if policy.idle is OverUseAnswer.OFF or one.idle_s < policy.idle_s:
        return
    answer = policy.idle if policy.idle is OverUseAnswer.RETURN else OverUseAnswer.TELL
    after = f"; it is taken back in {policy.notice_s:g}s unless it works" if answer is OverUseAnswer.RETURN else ""
    yield OverUseFinding(
        key=f"idle {one.allocation}",
        tenant=one.tenant,
        reason=Reason.IDLE,
        message=f"{one.allocation} holds {one.devices:g} devices and has had no GPU time for {one.idle_s:.0f}s{after}",
        allocation=one.allocation,
        answer=answer,
    )


def _to_take(finding: OverUseFinding, limit: float | None, held: Sequence[HeldUse]) -> list[AllocationId]:
    if finding.allocation:
        return [AllocationId(finding.allocation)]
    own = sorted((one for one in held if one.tenant == finding.tenant), key=lambda one: -one.granted_at)
    if finding.reason is not Reason.QUEUE_OVER_LIMIT or limit is None:
        return [one.allocation for one in own]
    beyond, taken = sum(one.devices for one in own) - limit, []
    for one in own:
        if beyond <= 1e-9:
            break
        taken.append(one.allocation)
        beyond -= one.devices
    return taken
