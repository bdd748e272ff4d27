"""Accounts of the GPU time that each container has earned and used on a device. Pure.

Theory of operation. The counter of GPU time is in the tenant's usage page, so it is read through ``ClampedCounter``, and the
agent adds the time that the driver measured and the page did not report (``unreported_ns``, see ``node.audit``). The *credit*
of a container is the time that it earned less the time that it used; what falls below its bound is added to the *overdraft*.

If a container overdraws its account or reports too little, it is held *strictly* for seconds: it runs in time windows
even if alone, its own kernel lengths are ignored, and it gets no time window while it is in debt. Meanwhile all containers of
that device are charged what the driver measured, and may be owed more than usual: overlapping work makes the usage pages
wrong for all of them. A container that respects its gate loses by this only the time that it had in excess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from calabash.model.request import AllocationId
from calabash.node.slots.clamped_counters import CREDIT_NS, KERNEL_NS_MAX, MS
from calabash.node.slots.layout import PagePolicy

LAG_NS_MAX = 5_000 * MS  # time that is owed to a container, or by it, is carried over up to this
AHEAD_NS_MAX = 1_000 * MS  # charged time that the driver has not measured after so long was not used
FADING = 4  # a debt fades in so many times its length while its container takes part in no round
ROBBED_CREDIT_NS = 500 * MS  # largest credit of a container beside one that is held strictly
OVERDRAFT_NS = 300 * MS
OVERDRAFT_LEAK_RATIO = 0.01  # an overdraft that grows more slowly than this is a measuring error
STRICT_NS = 3_000 * MS
SUSPENDED_NS = 50 * MS  # largest difference between the driver's measurement and the time windows in one interval
INDEBTED_NS = 250 * MS  # a container that owes more than this stays held strictly
HOLD_NS = 1_200 * MS  # the agent publishes at least once a second
IDLE_RATIO = 0.001  # less than this is not planned as idle time
LATE_NS = 1_000 * MS
LATE_RATIO = 0.4
LATER_RATIO = 0.67
UNCONFIRMED_NS = 1_000 * MS  # demand that is followed by no use for so long is ignored
CONFIRMED_RATIO = 0.05  # part of its share that counts as use


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeDemand:
    """Demand and use of one device by one container; times in ns of the host's monotonic clock.

    ``charged_ns`` is the cumulative and clamped counter of the usage page, ``unreported_ns`` the time that the agent adds
    to it, ``seen_ns`` the total that the driver measured, updated a few times a second.
    """

    core_percent: int
    policy: PagePolicy
    priority: int = 0
    waiting_count: int = 0  # launches that wait at the gate
    inflight_ns: int = 0  # estimated GPU time of launched work that is not known to be finished
    demand_ns: int = 0  # time of the last launch or attempt to launch; 0: none
    charged_ns: int = 0
    unreported_ns: int = 0
    seen_ns: int = 0
    kernel_ns: int = 0  # length of the container's long kernels
    unmeasured_ns: int = 0  # charged so far for a kernel that was never measured and runs beside others
    paged_bytes: int = 0  # part of the container's memory that need not lie on the device
    busy_until_ns: int = 0  # expected end of the work in flight

    @property
    def used_ns(self) -> int:
        """All GPU time of the container, reported or not."""
        return self.charged_ns + self.unreported_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Balance of one container on one device, and the values of the counters at its last settlement.

    Attributes:
        credit_ns: time that is owed to the container; negative if the container owes time.
        earned_ns: time earned since the last settlement.
        strict_until_ns: until when the container is held strictly.
        caught_ns: when the container was last found to report too little; 0 if never.
        ahead_ns: time that the container was charged and the driver has not measured yet.
        seen_at_ns: when the driver last measured use.
        unconfirmed_ns: unused time in time windows of the container since it last used the device.
        late_ns: unused time in time windows of the container in about the last ``LATE_NS``.
    """

    credit_ns: int = 0
    overdraft_ns: int = 0  # debt beyond its bound, less what has leaked away since
    earned_ns: int = 0
    used_ns: int = 0  # this and the next two: values of the demand's counters at the last settlement
    unreported_ns: int = 0
    seen_ns: int = 0
    settled_ns: int = 0  # time of the last settlement
    strict_until_ns: int = 0
    caught_ns: int = 0
    ahead_ns: int = 0
    seen_at_ns: int = 0
    unconfirmed_ns: int = 0
    late_ns: int = 0
    is_phantom: bool = False  # the container asked for time windows for a second and did not run
    watched_ns: int = 0  # the counter of use at the last decision

    @property
    def balance_ns(self) -> int:
        """The credit plus the time earned since the last settlement."""
        return self.credit_ns + self.earned_ns

    @property
    def is_settled(self) -> bool:
        """True if only use of the device can change the account."""
        return self.credit_ns == 0 and self.overdraft_ns == 0 and self.strict_until_ns == 0

    def is_strict(self, now_ns: int) -> bool:
        """Return True if the container is limited to its share by time windows even when it is alone."""
        return now_ns < self.strict_until_ns

    def is_suspended(self, now_ns: int) -> bool:
        """Return True if the container gets no time window until it has paid its debt."""
        return self.is_strict(now_ns) and self.balance_ns < -SUSPENDED_NS

    def is_silent_user(self, now_ns: int) -> bool:
        """Return True if the container used the device in the last ``HOLD_NS`` without reporting it."""
        return self.caught_ns > 0 and now_ns - self.caught_ns < HOLD_NS


def settle(
    before: Mapping[AllocationId, Account],
    demands: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
    *,
    among: frozenset[AllocationId],
    unused_ns: Mapping[AllocationId, int],
    overcharged_ns: Mapping[AllocationId, int],
    elapsed_ns: int,
    now_ns: int,
) -> dict[AllocationId, Account]:
    """Return the accounts of all containers of a device after ``elapsed_ns``.

    Args:
        share: the part of the device's time, 0..1, that each container is entitled to.
        among: the containers that took part in rounds in that time; the others are owed nothing.
        unused_ns: for each container the time in its time windows in which the device had no work; it pays for this.
        overcharged_ns: for each container the part of its charges that is impossible, which is refunded.
    """
    is_witnessed = any(account.is_strict(now_ns) for account in before.values())
    is_full = sum(share[name] for name in among) > 1 - IDLE_RATIO
    idle = {} if is_witnessed else _unchanged(before, demands, among)
    changing = {name: demand for name, demand in demands.items() if name not in idle}
    accounts = {
        name: _paid(before.get(name), demand, int(share[name] * elapsed_ns), witnessed=is_witnessed, now_ns=now_ns)
        for name, demand in changing.items()
    }
    if not is_witnessed:
        due_ns = _unused_due(before, unused_ns, share, among, elapsed_ns)
        accounts = _refunded(before, accounts, changing, overcharged_ns, now_ns=now_ns)
        accounts = _charged_for_unused(before, accounts, due_ns, is_full=is_full)
    accounts = _use_recorded(accounts, changing, share, unused_ns, elapsed_ns=elapsed_ns)
    if not is_witnessed:
        accounts = _without_hidden_time(accounts, now_ns=now_ns)
        if is_full:
            accounts = _surplus_shared(accounts, share, among)
    return idle | _within_bounds(
        before, accounts, changing, among, is_witnessed=is_witnessed, elapsed_ns=elapsed_ns, now_ns=now_ns
    )


def _unchanged(
    before: Mapping[AllocationId, Account],
    demands: Mapping[AllocationId, ComputeDemand],
    among: frozenset[AllocationId],
) -> dict[AllocationId, Account]:
    """Return the accounts of containers that took part in no round, owe nothing, are owed nothing and used nothing."""
    return {
        name: account
        for name, account in before.items()
        if name not in among and name in demands and account.is_settled and account.used_ns == demands[name].used_ns
    }


def _refunded(
    before: Mapping[AllocationId, Account],
    accounts: Mapping[AllocationId, Account],
    demands: Mapping[AllocationId, ComputeDemand],
    overcharged_ns: Mapping[AllocationId, int],
    *,
    now_ns: int,
) -> dict[AllocationId, Account]:
    """Return the accounts after a refund of ``overcharged_ns``, and of charges for use that the driver did not measure.

    Such use is refunded only if the driver has measured any use of the device in the last ``HOLD_NS``.
    """
    audited = any(now_ns - account.seen_at_ns < HOLD_NS for account in before.values() if account.seen_at_ns)
    return {
        name: _seen(
            account,
            before[name],
            demands[name],
            overcharged_ns=overcharged_ns.get(name, 0),
            audited=audited,
            now_ns=now_ns,
        )
        if name in before
        else account
        for name, account in accounts.items()
    }


def _charged_for_unused(
    before: Mapping[AllocationId, Account],
    accounts: Mapping[AllocationId, Account],
    due_ns: Mapping[AllocationId, int],
    *,
    is_full: bool,
) -> dict[AllocationId, Account]:
    """Return the accounts after each container has paid the unused time in ``due_ns``.

    If the shares do not add up to the whole device (``is_full`` is False), no credit falls below ``CREDIT_NS`` by this.
    """
    charged = dict(accounts)
    for name in accounts.keys() & before.keys():
        credit_ns = accounts[name].credit_ns - due_ns.get(name, 0)
        if not is_full:
            credit_ns = max(credit_ns, min(accounts[name].credit_ns, CREDIT_NS))
        charged[name] = replace(accounts[name], credit_ns=credit_ns)
    return charged


def _use_recorded(
    accounts: Mapping[AllocationId, Account],
    demands: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
    unused_ns: Mapping[AllocationId, int],
    *,
    elapsed_ns: int,
) -> dict[AllocationId, Account]:
    """Return the accounts with new values of ``late_ns``, ``unconfirmed_ns`` and ``is_phantom`` (see ``Account``)."""
    recorded = {}
    for name, account in accounts.items():
        late_ns = int(account.late_ns * max(0.0, 1 - elapsed_ns / LATE_NS)) + unused_ns.get(name, 0)
        late = replace(account, late_ns=late_ns)
        recorded[name] = _confirmed(late, demands[name], share[name], unused_ns.get(name, 0))
    return recorded


def _without_hidden_time(accounts: dict[AllocationId, Account], *, now_ns: int) -> dict[AllocationId, Account]:
    """Return the accounts without any credit or debt if a container was just found to report too little.

    The balances come from a wrong usage page: the unreported time, which is charged now, would be paid for twice.
    """
    if not any(account.caught_ns == now_ns for account in accounts.values()):
        return accounts
    return {name: replace(account, credit_ns=0) for name, account in accounts.items()}


def _surplus_shared(
    accounts: Mapping[AllocationId, Account], share: Mapping[AllocationId, float], among: frozenset[AllocationId]
) -> dict[AllocationId, Account]:
    """Subtract from the credit of each container its share of the sum of all credits, so that they add up to zero.

    The device, whose shares add up to the whole, cannot owe time to all: lost time and errors are borne by all.
    """
    surplus_ns = sum(accounts[name].credit_ns for name in among)
    shared = dict(accounts)
    for name in among:
        shared[name] = replace(accounts[name], credit_ns=accounts[name].credit_ns - int(surplus_ns * share[name]))
    return shared


def _within_bounds(
    before: Mapping[AllocationId, Account],
    accounts: Mapping[AllocationId, Account],
    demands: Mapping[AllocationId, ComputeDemand],
    among: frozenset[AllocationId],
    *,
    is_witnessed: bool,
    elapsed_ns: int,
    now_ns: int,
) -> dict[AllocationId, Account]:
    """Limit credit and debt of each container; ``is_witnessed``: at least one of them is held strictly."""
    longest_ns = max((demands[name].kernel_ns for name in among), default=0)
    result = {}
    for name, account in accounts.items():
        if is_witnessed or account.is_strict(now_ns):
            result[name] = _witnessed(account, now_ns)
        elif name in among:
            result[name] = _lagging(account, max(longest_ns, demands[name].kernel_ns), now_ns)
        else:
            known_ns = before[name].credit_ns if name in before else 0
            result[name] = _bounded(account, demands[name].kernel_ns, known_ns, elapsed_ns=elapsed_ns, now_ns=now_ns)
    return result


def _unused_due(
    before: Mapping[AllocationId, Account],
    unused_ns: Mapping[AllocationId, int],
    share: Mapping[AllocationId, float],
    among: frozenset[AllocationId],
    elapsed_ns: int,
) -> dict[AllocationId, int]:
    """Return for each container the unused time of time windows, in ns, for which it must pay.

    On a busy machine launches are late. If one container recently left far more time unused than others and has no
    debt, it pays for the others' unused time too, up to ``LATE_RATIO`` of their time windows.
    """
    due_ns = dict(unused_ns)
    ratio = {
        name: before[name].late_ns / (share[name] * LATE_NS) for name in among if name in before and share[name] > 0
    }
    most = max(ratio, key=lambda name: ratio[name], default=None)
    if most is None or ratio[most] < LATE_RATIO or before[most].credit_ns < -CREDIT_NS:
        return due_ns
    for name, part in ratio.items():
        if part < LATER_RATIO * ratio[most]:
            forgiven_ns = min(unused_ns.get(name, 0), int(LATE_RATIO * share[name] * max(elapsed_ns, 2 * CREDIT_NS)))
            due_ns[name] = due_ns.get(name, 0) - forgiven_ns
            due_ns[most] = due_ns.get(most, 0) + forgiven_ns
    return due_ns


def _seen(
    account: Account, old: Account, demand: ComputeDemand, *, overcharged_ns: int, audited: bool, now_ns: int
) -> Account:
    """Return the account with refunds of ``overcharged_ns`` and, if ``audited``, of use that the driver did not see."""
    seen_ns = demand.seen_ns - old.seen_ns
    ahead_ns = max(0, old.ahead_ns + demand.used_ns - old.used_ns - overcharged_ns - seen_ns)
    limit_ns = AHEAD_NS_MAX + max(0, min(KERNEL_NS_MAX, demand.inflight_ns))
    refund_ns = max(0, ahead_ns - limit_ns) if audited else 0
    return replace(
        account,
        credit_ns=account.credit_ns + overcharged_ns + refund_ns,
        ahead_ns=min(limit_ns, ahead_ns),
        seen_at_ns=now_ns if seen_ns > 0 else old.seen_at_ns,
    )


def _paid(old: Account | None, demand: ComputeDemand, earned_ns: int, *, witnessed: bool, now_ns: int) -> Account:
    if old is None:
        return _counted(Account(), demand, now_ns)
    earned_ns += old.earned_ns
    if demand.unreported_ns > old.unreported_ns:
        old = replace(old, caught_ns=now_ns, strict_until_ns=now_ns + STRICT_NS)
    seen_ns = demand.seen_ns - old.seen_ns
    if witnessed and not seen_ns and now_ns - old.settled_ns < HOLD_NS:
        return replace(old, earned_ns=earned_ns)
    paid_ns = seen_ns if witnessed and seen_ns else demand.used_ns - old.used_ns
    return _counted(replace(old, credit_ns=old.credit_ns + earned_ns - paid_ns), demand, now_ns)


def _confirmed(account: Account, demand: ComputeDemand, share: float, unused_ns: int) -> Account:
    """Add unused time to ``unconfirmed_ns`` and subtract use. Above a limit, mark the container as a phantom."""
    done_ns = max(0, demand.used_ns - account.watched_ns)
    limit_ns = max(int(share * UNCONFIRMED_NS), 2 * demand.kernel_ns)
    unconfirmed_ns = account.unconfirmed_ns + unused_ns - int(done_ns / CONFIRMED_RATIO)
    unconfirmed_ns = max(0, min(limit_ns + int(share * UNCONFIRMED_NS) // 4, unconfirmed_ns))
    return replace(
        account, unconfirmed_ns=unconfirmed_ns, is_phantom=unconfirmed_ns > limit_ns, watched_ns=demand.used_ns
    )


def _counted(account: Account, demand: ComputeDemand, now_ns: int) -> Account:
    """Return the account as settled now: with the present time and counters, and no earned time to be settled."""
    return replace(
        account,
        earned_ns=0,
        used_ns=demand.used_ns,
        unreported_ns=demand.unreported_ns,
        seen_ns=demand.seen_ns,
        settled_ns=now_ns,
    )


def _witnessed(account: Account, now_ns: int) -> Account:
    """Limit credit and debt of a container while it or another container of the device is held strictly."""
    if account.is_strict(now_ns):
        credit_ns = max(-LAG_NS_MAX, min(CREDIT_NS, account.credit_ns))
        account = replace(account, credit_ns=credit_ns, overdraft_ns=0)
        return replace(account, strict_until_ns=now_ns + STRICT_NS) if account.credit_ns < -INDEBTED_NS else account
    if account.credit_ns < -ROBBED_CREDIT_NS:
        return replace(account, strict_until_ns=now_ns + STRICT_NS)
    return replace(account, credit_ns=min(ROBBED_CREDIT_NS, account.credit_ns), strict_until_ns=0)


def _lagging(account: Account, kernel_ns: int, now_ns: int) -> Account:
    """Limit credit and debt of a container that takes part in rounds; hold it strictly if it owes too much."""
    if account.credit_ns < -max(CREDIT_NS, 2 * kernel_ns) - 3 * kernel_ns - OVERDRAFT_NS:
        return replace(account, strict_until_ns=now_ns + STRICT_NS, overdraft_ns=0)
    credit_ns = max(-LAG_NS_MAX, min(LAG_NS_MAX, account.credit_ns))
    return replace(account, credit_ns=credit_ns, overdraft_ns=0, strict_until_ns=0)


def _bounded(account: Account, kernel_ns: int, known_ns: int, *, elapsed_ns: int, now_ns: int) -> Account:
    """Limit the account of a container that takes part in no round: earlier credit (``known_ns``) and debt fade."""
    credit_ns = account.credit_ns
    floor_ns = -max(CREDIT_NS, 2 * kernel_ns) - kernel_ns
    ceiling_ns = max(0, known_ns - elapsed_ns)
    overdraft_ns = account.overdraft_ns + max(0, min(floor_ns, known_ns) - credit_ns) - max(0, credit_ns - ceiling_ns)
    overdraft_ns = max(0, overdraft_ns - int(OVERDRAFT_LEAK_RATIO * elapsed_ns))
    credit_ns = max(-LAG_NS_MAX, min(ceiling_ns, credit_ns))
    credit_ns += max(0, min(floor_ns - credit_ns, elapsed_ns // FADING))
    if overdraft_ns > OVERDRAFT_NS + 2 * kernel_ns:
        credit_ns -= overdraft_ns
        return replace(account, credit_ns=credit_ns, overdraft_ns=0, strict_until_ns=now_ns + STRICT_NS)
    return replace(account, credit_ns=credit_ns, overdraft_ns=overdraft_ns, strict_until_ns=0)
