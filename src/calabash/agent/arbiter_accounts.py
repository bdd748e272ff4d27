"""What a container has earned and used of a device's time. Pure.

Theory of operation. The counter of GPU time lies in the tenant's own page: it is read as ``believed`` allows, and what
the driver saw and the page did not tell is added by the agent (``unreported_ns``, see ``audit``). The *credit* is what
was earned less what was used. It is bounded, because turns correct small errors only; what falls below the bound is
summed up in the *overdraft*. A container that overdraws its account, or was found to report too little, is held
*strictly* for some seconds: it runs in turns even when it is alone, the length that it gives for its kernels is
not used, its credit may fall by seconds, and while it is in debt it has no turn at all. As long as somebody is held
strictly, nobody on that device is charged by pages, which overlapping work makes wrong even for the honest: all
are charged what the driver saw, whenever the agent has published it, and may be owed more than usual. A container that
keeps to its gate loses nothing by being held strictly but the time that it had too much of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from calabash.agent.believed import CREDIT_NS, MS
from calabash.agent.pages_layout import PagePolicy
from calabash.model.request import AllocationId

KERNEL_NS_MAX = 250 * MS  # no turn is made longer than this for the sake of one kernel
ROBBED_CREDIT_NS = 500 * MS  # beside somebody who is held strictly, one may be owed so much
OVERDRAFT_NS = 300 * MS
OVERDRAFT_LEAK_RATIO = 0.01  # an overdraft that grows more slowly than this is a measuring error
STRICT_NS = 3_000 * MS
SUSPENDED_NS = 50 * MS  # a window of the driver holds more than its turns, or less, by so much
INDEBTED_NS = 250 * MS  # who owes more than this is held on
HOLD_NS = 1_200 * MS  # the agent publishes at least once a second
DEBT_NS_MAX = 5_000 * MS
IDLE_RATIO = 0.001  # less than this is not planned as idle time
WATCH_NS = 300 * MS  # use is compared with what was earned over about so long
FULL_RATIO = 0.9  # who uses less of its share than this leaves time unused,
WASTED_RATIO = 0.02  # if that is at least so much of the device's
PREPAID_KERNEL_NS = 20 * MS  # turns for the sake of such a kernel are paid for whether they are used or not
VARYING_RATIO = 0.125  # a turn for long kernels of which no more than this is left was used
UNCONFIRMED_NS = 1_000 * MS  # demand that is followed by no use for so long is ignored
CONFIRMED_RATIO = 0.05  # part of its share that counts as use


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeDemand:
    """What one container wants and has used of one device; times in ns of the host's monotonic clock.

    ``charged_ns`` is cumulative and believed, ``unreported_ns`` what the agent adds to it, ``seen_ns`` what the driver saw
    in all, a few times a second.
    """

    core_percent: int
    policy: PagePolicy
    priority: int = 0
    waiting_count: int = 0
    inflight_ns: int = 0
    demand_ns: int = 0
    charged_ns: int = 0
    unreported_ns: int = 0
    seen_ns: int = 0
    kernel_ns: int = 0
    paged_bytes: int = 0  # of its memory, what need not lie on the device
    busy_until_ns: int = 0  # when its work in flight should be done

    @property
    def used_ns(self) -> int:
        """All of its GPU time, told or not."""
        return self.charged_ns + self.unreported_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a container is owed (positive) or has overdrawn, and the counters up to which that is known.

    ``earned_ns`` waits for its settlement; until ``strict_until_ns`` it is held strictly; ``caught_ns`` is when it was
    last found to report too little.

    ``prepaid_ns`` was paid with the last turn for a long kernel and is not used yet. ``expected_ns`` and ``done_ns`` are
    what it earned in turns and what it used, both fading; ``unconfirmed_ns`` is what it earned without any use.
    """

    credit_ns: int = 0
    overdraft_ns: int = 0
    earned_ns: int = 0
    used_ns: int = 0
    unreported_ns: int = 0
    seen_ns: int = 0
    settled_ns: int = 0
    strict_until_ns: int = 0
    caught_ns: int = 0
    prepaid_ns: int = 0
    expected_ns: int = 0
    done_ns: int = 0
    unconfirmed_ns: int = 0
    is_wasting: bool = False  # it has had turns for a while and does not use them
    is_phantom: bool = False  # it asked for turns for a second and did not run
    watched_ns: int = 0  # the counter of use up to which that is known

    @property
    def balance_ns(self) -> int:
        """The credit with what was earned since it was settled."""
        return self.credit_ns + self.earned_ns

    @property
    def is_settled(self) -> bool:
        """Whether nothing but use can change it."""
        return self.credit_ns == 0 and self.overdraft_ns == 0 and self.strict_until_ns == 0

    def is_strict(self, now_ns: int) -> bool:
        """Whether it is held to its share by turns, even when it is alone."""
        return now_ns < self.strict_until_ns

    def is_suspended(self, now_ns: int) -> bool:
        """Whether it must pay before it runs again."""
        return self.is_strict(now_ns) and self.balance_ns < -SUSPENDED_NS

    def is_silent_user(self, now_ns: int) -> bool:
        """Whether it used the device a moment ago and did not tell."""
        return self.caught_ns > 0 and now_ns - self.caught_ns < HOLD_NS

    def prepaying(self, turn_ns: int) -> Account:
        """Having paid for a whole turn. Of the last one a little is given back, for kernels vary; more than that is lost."""
        left_ns = self.prepaid_ns if self.prepaid_ns <= VARYING_RATIO * turn_ns else 0
        return replace(self, credit_ns=self.credit_ns + left_ns - turn_ns, prepaid_ns=turn_ns)


def settle(
    before: Mapping[AllocationId, Account],
    demands: Mapping[AllocationId, ComputeDemand],
    share: Mapping[AllocationId, float],
    *,
    among: frozenset[AllocationId],
    elapsed_ns: int,
    now_ns: int,
) -> dict[AllocationId, Account]:
    """The accounts of all containers of a device after ``elapsed_ns``.

    Args:
        share: the part of the device's time, 0..1, that each is entitled to.
        among: those who took turns in that time; the others are owed nothing.
    """
    witnessed = any(account.is_strict(now_ns) for account in before.values())
    idle = {
        name: account
        for name, account in before.items()
        if not witnessed
        and name not in among
        and name in demands
        and account.is_settled
        and account.used_ns == demands[name].used_ns
    }
    accounts = {
        name: _paid(before.get(name), demand, int(share[name] * elapsed_ns), witnessed=witnessed, now_ns=now_ns)
        for name, demand in demands.items()
        if name not in idle
    }
    accounts = {
        name: _watched(
            account,
            demands[name],
            share[name],
            elapsed_ns=elapsed_ns,
            takes_turns=name in among and not account.is_suspended(now_ns),
        )
        for name, account in accounts.items()
    }
    surplus = sum(accounts[name].credit_ns for name in among)
    # Time that somebody leaves unused is its own loss: it would live on its neighbours if they bore it, too.
    unused = surplus > 0 and any(accounts[name].is_wasting for name in among)
    if not witnessed and not unused and sum(share[name] for name in among) > 1 - IDLE_RATIO:
        # Nobody can be owed time that the card does not have: lost time and measuring errors are borne by all.
        for name in among:
            owed = accounts[name].credit_ns - int(surplus * share[name])
            accounts[name] = replace(accounts[name], credit_ns=owed)
    # Beside long kernels everybody's account swings by one of them.
    longest_ns = max((demands[name].kernel_ns for name in among), default=0)
    return idle | {
        name: _witnessed(account, now_ns)
        if witnessed or account.is_strict(now_ns)
        else _bounded(
            account,
            max(longest_ns, demands[name].kernel_ns) if name in among else demands[name].kernel_ns,
            takes_turns=name in among,
            elapsed_ns=elapsed_ns,
            now_ns=now_ns,
        )
        for name, account in accounts.items()
    }


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
    from_prepaid_ns = max(0, min(old.prepaid_ns, paid_ns))
    credit_ns = old.credit_ns + earned_ns - (paid_ns - from_prepaid_ns)
    return _counted(replace(old, credit_ns=credit_ns, prepaid_ns=old.prepaid_ns - from_prepaid_ns), demand, now_ns)


def _watched(account: Account, demand: ComputeDemand, share: float, *, elapsed_ns: int, takes_turns: bool) -> Account:
    """With what it did of late compared with what it earned."""
    done_ns = max(0, demand.used_ns - account.watched_ns) if account.watched_ns else 0
    earned_ns = int(share * elapsed_ns) if takes_turns else 0
    kept = max(0.0, 1 - elapsed_ns / WATCH_NS) if takes_turns else 0.0
    expected_ns = int(account.expected_ns * kept) + earned_ns
    recently_ns = int(account.done_ns * kept) + done_ns
    limit_ns = max(int(share * UNCONFIRMED_NS), 2 * demand.kernel_ns)
    unconfirmed_ns = account.unconfirmed_ns + earned_ns - int(done_ns / CONFIRMED_RATIO)
    unconfirmed_ns = max(0, min(limit_ns + int(share * UNCONFIRMED_NS) // 4, unconfirmed_ns))
    return replace(
        account,
        expected_ns=expected_ns,
        done_ns=recently_ns,
        is_wasting=recently_ns < min(FULL_RATIO * expected_ns, expected_ns - WASTED_RATIO * WATCH_NS),
        unconfirmed_ns=unconfirmed_ns,
        is_phantom=unconfirmed_ns > limit_ns,
        watched_ns=demand.used_ns,
    )


def _counted(account: Account, demand: ComputeDemand, now_ns: int) -> Account:
    """Settled up to what the counters say now."""
    return replace(
        account,
        earned_ns=0,
        used_ns=demand.used_ns,
        unreported_ns=demand.unreported_ns,
        seen_ns=demand.seen_ns,
        settled_ns=now_ns,
    )


def _witnessed(account: Account, now_ns: int) -> Account:
    """Bounds beside, or for, a container that is held strictly."""
    if account.is_strict(now_ns):
        credit_ns = max(-DEBT_NS_MAX, min(CREDIT_NS, account.credit_ns))
        account = replace(account, credit_ns=credit_ns, overdraft_ns=0)
        return replace(account, strict_until_ns=now_ns + STRICT_NS) if account.credit_ns < -INDEBTED_NS else account
    if account.credit_ns < -ROBBED_CREDIT_NS:
        return replace(account, strict_until_ns=now_ns + STRICT_NS)
    return replace(account, credit_ns=min(ROBBED_CREDIT_NS, account.credit_ns), strict_until_ns=0)


def _bounded(account: Account, kernel_ns: int, *, takes_turns: bool, elapsed_ns: int, now_ns: int) -> Account:
    credit_ns = account.credit_ns
    limit_ns = max(CREDIT_NS, 2 * kernel_ns)
    floor_ns, ceiling_ns = -limit_ns - kernel_ns, limit_ns if takes_turns else 0
    # A round may give more than the share, while a neighbour has not earned its long kernel yet: that is no overdraft.
    overrun_ns = max(0, floor_ns - credit_ns - account.prepaid_ns - (elapsed_ns if takes_turns else 0))
    overdraft_ns = account.overdraft_ns + overrun_ns - max(0, credit_ns - ceiling_ns)
    overdraft_ns = max(0, overdraft_ns - int(OVERDRAFT_LEAK_RATIO * elapsed_ns))
    credit_ns = max(floor_ns, min(ceiling_ns, credit_ns))
    if overdraft_ns > OVERDRAFT_NS + 2 * kernel_ns:
        credit_ns -= overdraft_ns
        return replace(account, credit_ns=credit_ns, overdraft_ns=0, strict_until_ns=now_ns + STRICT_NS)
    return replace(account, credit_ns=credit_ns, overdraft_ns=overdraft_ns, strict_until_ns=0)
