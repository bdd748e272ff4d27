"""The arbiter's state of one device: the shares of its containers, the last decision, and whether it is at rest.

A device is at rest if no container uses it and a decision would change nothing: all orders and accounts stay as they
are until a container wants the device or the driver measures GPU time. A device at rest costs one short read per share
and step. When a rest ends, the decision of its last step is made first, so that the accounts are the same as if every
step had decided.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import ComputeDemand
from calabash.node.arbiter.policy import Order, SharedDevice, TimeWindow, decide, is_active
from calabash.node.arbiter.swap_shifts import Shift, present
from calabash.node.slots.clamped_counters import CREDIT_NS, KERNEL_NS_MAX, MS, ClampedCounter, LargestStep
from calabash.node.slots.layout import PagePolicy
from calabash.node.slots.pages import LimitsPage, TurnPlan, UsagePage

KERNEL_WINDOW_NS = 250 * MS
KERNEL_WINDOWS = 4
CHARGES_NS = 250 * MS  # interval at which the driver's measurements are compared on a device at rest


class DeviceShare:
    """Slice that one container has of one device: its pages, and the values last read and written."""

    def __init__(self, name: AllocationId, limits: LimitsPage, usage: UsagePage, index: int) -> None:
        self.name = name
        self._limits = limits
        self._usage = usage
        self._index = index
        self._demand: ComputeDemand | None = None
        self._order: Order | None = None
        self._believed = ClampedCounter()
        self._steps = LargestStep()
        self._kernels: deque[int] = deque(maxlen=KERNEL_WINDOWS)
        self._kernels_at_ns = 0

    def demand(self, now_ns: int) -> ComputeDemand:
        """Return the demand and the use of the slice. If the slice is idle and unchanged, the last result is returned."""
        known = self._demand
        limits = self._limits.device(self._index)
        if (
            known is not None
            and known.demand_ns == self._usage.demand_ns(self._index)
            and known.unreported_ns == limits.unreported_ns
            and known.seen_ns == limits.seen_ns
            and not is_active(known, now_ns)
        ):
            return known
        unreported_ns, seen_ns = self._limits.charges(self._index)
        usage = self._usage.device(self._index)
        if now_ns - self._kernels_at_ns > KERNEL_WINDOW_NS:
            self._kernels_at_ns = now_ns
            longest = self._usage.take_kernel_ns_max(self._index)
            if longest > 0:
                self._kernels.append(longest)
        kernel_ns = min(self._kernel_ns(usage.kernel_ns_max), KERNEL_NS_MAX)
        burst_ns = 2 * max(kernel_ns, CREDIT_NS)
        charged_ns = self._believed.read(usage.charged_ns, now_ns, burst_ns=burst_ns, inflight_ns=usage.inflight_ns)
        kernel_ns = min(self._steps.kernel_ns(kernel_ns, charged_ns, now_ns, usage.launch_count), KERNEL_NS_MAX)
        policy = limits.policy if limits.policy <= PagePolicy.BEST_EFFORT else PagePolicy.FIXED
        if limits.policy == PagePolicy.METERED:
            policy = PagePolicy.NONE
        self._demand = ComputeDemand(
            core_percent=max(1, min(100, limits.core_percent)),
            policy=PagePolicy(policy),
            priority=limits.priority,
            waiting_count=usage.waiting_count,
            inflight_ns=usage.inflight_ns,
            demand_ns=min(usage.demand_ns, now_ns),
            charged_ns=charged_ns,
            unreported_ns=unreported_ns,
            seen_ns=seen_ns,
            kernel_ns=kernel_ns,
            unmeasured_ns=self._steps.divided_ns(now_ns),
            busy_until_ns=usage.busy_until_ns,
            paged_bytes=max(0, usage.used_bytes - limits.memory_limit_bytes) if limits.spill_limit_bytes else 0,
        )
        return self._demand

    @property
    def limits(self) -> LimitsPage:
        return self._limits

    @property
    def demand_place(self) -> tuple[int, int]:
        """File descriptor and offset of the word of the usage page that changes with every demand."""
        return self._usage.demand_place(self._index)

    def charges_text(self) -> bytes:
        """Return the bytes of the limits page that the agent changes whenever the driver has measured use."""
        return self._limits.charges_text(self._index)

    def _kernel_ns(self, latest_ns: int) -> int:
        """Return the length of the slice's long kernels; ``latest_ns`` if no reading has been stored yet.

        It is the smallest of the longest kernels in the last ``KERNEL_WINDOWS`` periods, because the kernels of other
        programs can only make a kernel appear longer.
        """
        return min(self._kernels, default=latest_ns)

    def publish(self, order: Order) -> None:
        """Write an order to the limits page if it differs from the last one."""
        last = self._order
        if last == order:
            return
        self._order = order
        if order.window is None or order.round is None:
            self._limits.set_gate(self._index, order.gate, neighbours=order.neighbours)
            return
        plan = TurnPlan(
            from_ns=order.round.from_ns,
            start_ns=order.window.start_ns,
            end_ns=order.window.end_ns,
            period_ns=order.round.length_ns,
        )
        sooner = last is None or last.window is None or last.round is None or _sooner(last, order.window)
        self._limits.set_gate(self._index, order.gate, plan, neighbours=order.neighbours, wake=sooner)


class ArbitratedDevice:
    """All slices of one device, with the state of their arbitration."""

    def __init__(self, members: Mapping[AllocationId, DeviceShare], before: ArbitratedDevice | None = None) -> None:
        self.members = members
        self.limits = tuple({id(share.limits): share.limits for share in members.values()}.values())
        self._state, self._shift = before.transferred_state() if before is not None else (SharedDevice(), None)
        self._shares = tuple(members.values())
        self._demand_words_at = [share.demand_place for share in self._shares]
        self._demand_words: list[bytes] = []
        self._charges: list[bytes] = []
        self._demands: dict[AllocationId, ComputeDemand] = {}
        self._charges_at_ns = 0
        self._read_at_ns = 0
        self.rests = False

    @property
    def active(self) -> Collection[AllocationId]:
        """The containers that want the device."""
        return self._state.active

    def step(self, now_ns: int) -> None:
        """Read the pages, decide, and publish the orders. Does nothing if the device is at rest and nothing has changed."""
        if self.rests:
            if not self._has_changed(now_ns):
                self._read_at_ns = now_ns
                return
            self._wake()
            for limits in self.limits:  # the heartbeat of a device at rest is slower
                limits.beat(now_ns)
        # Read before the pages: what changes after it is seen at the next step.
        words, charges = demand_words(self._demand_words_at), [share.charges_text() for share in self._shares]
        demands = {name: share.demand(now_ns) for name, share in self.members.items()}
        if self._decide(demands, now_ns):
            self.rests = True
            self._demand_words, self._charges, self._demands = words, charges, demands
            self._read_at_ns = self._charges_at_ns = now_ns

    def transferred_state(self) -> tuple[SharedDevice, Shift | None]:
        """Return the state of the device, for the object that replaces this one when the set of slices changes."""
        if self.rests:
            self._wake()
        return self._state, self._shift

    def _wake(self) -> None:
        self.rests = False
        self._decide(self._demands, self._read_at_ns)

    def _has_changed(self, now_ns: int) -> bool:
        if demand_words(self._demand_words_at) != self._demand_words:
            return True
        if now_ns - self._charges_at_ns < CHARGES_NS:
            return False
        self._charges_at_ns = now_ns
        return [share.charges_text() for share in self._shares] != self._charges

    def _decide(self, demands: Mapping[AllocationId, ComputeDemand], now_ns: int) -> bool:
        """Make and publish one decision; return True if the device can rest.

        It can rest if further decisions would change nothing until a container uses or wants the device.
        """
        shown = present(self._shift, demands, now_ns)
        before, self._shift = self._state, shown.shift
        self._state, decision = decide(before, shown.demands, now_ns)
        for name, order in (*decision.orders.items(), *shown.aside.items()):
            self.members[name].publish(order)
        return shown.shift is None and not shown.aside and _is_steady(before, self._state, now_ns)


def demand_words(places: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the 8-byte word at each of ``places``, which are pairs of a file descriptor and an offset in the file.

    A word changes with every demand of a program.
    """
    return [os.pread(descriptor, 8, offset) for descriptor, offset in places]


def _is_steady(before: SharedDevice, after: SharedDevice, now_ns: int) -> bool:
    """Return True if the state has not changed and cannot change until a container uses or wants the device."""
    if after.active or after.scheduled:
        return False
    if any(not account.is_settled or account.is_silent_user(now_ns) for account in after.accounts.values()):
        return False
    return replace(before, accounted_ns=0, covered_ns=0) == replace(after, accounted_ns=0, covered_ns=0)


def _sooner(last: Order, window: TimeWindow) -> bool:
    """Return True if a program that sleeps according to the last order would wake up after the start of this time window."""
    assert last.window is not None
    assert last.round is not None
    if last.window.end_ns <= last.window.start_ns:
        return True
    behind = window.start_ns - last.window.start_ns
    expected = last.window.start_ns + -(-behind // last.round.length_ns) * last.round.length_ns
    return window.start_ns < expected or last.window.end_ns > window.start_ns
