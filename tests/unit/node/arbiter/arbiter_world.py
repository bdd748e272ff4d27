"""Simulation in virtual time for the arbiter's policy: tenants behind the shim's gate, and a time-sliced card.

Tenants may lie: hide their charges, forge their bucket, or launch past every gate; the agent audits them and stops by
force a tenant that runs while it is suspended.

It repeats the rules of ``native/shim/compute.c`` in a few lines: time windows with the half-kernel rule, a rate bucket, little
work in flight. A step is 100 microseconds; no rule here depends on real time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from calabash.model.request import AllocationId
from calabash.node.arbiter.accounts import ComputeDemand
from calabash.node.arbiter.policy import EMPTY_WINDOW, Order, SharedDevice, decide
from calabash.node.audit.auditor import PACED_WINDOW_NS, WINDOW_NS
from calabash.node.audit.compare import Audit, Throttle, Window, check, throttle
from calabash.node.audit.duty_cycle import due_ns
from calabash.node.slots.clamped_counters import MS, LargestStep
from calabash.node.slots.layout import Gate, PagePolicy

STEP_NS = 100_000
INFLIGHT_NS = 5 * MS
BURST_NS = 20 * MS


@dataclass(slots=True, kw_only=True)
class Tenant:
    """One container. ``wants(now)`` returns True if it has another kernel to launch."""

    kernel_ns: int
    core_percent: int
    policy: PagePolicy = PagePolicy.FIXED
    priority: int = 0
    wants: Callable[[int], bool] = lambda _now: True
    queue: list[int] = field(default_factory=list)
    charged_ns: int = 0
    busy_ns: int = 0
    demand_ns: int = 0
    waiting: bool = False
    bucket_ns: int = 0
    busy_until_ns: int = 0
    busy_at: list[tuple[int, int]] = field(default_factory=list)
    conceals: bool = False  # its page tells nothing
    rich: bool = False  # its bucket is never empty
    ungated: bool = False  # no library in front of the driver: no gate, no page
    depth_ns: int = INFLIGHT_NS
    forged: Mapping[str, Any] = field(default_factory=dict)  # fields of its page that say something else
    hidden_ns: int = 0
    audit: Audit = field(default_factory=Audit)
    throttle: Throttle = field(default_factory=Throttle)
    seen_ns: int = 0
    unreported_ns: int = 0
    told_ns: int = 0

    steps: LargestStep = field(default_factory=LargestStep)

    jitter: float = 0.0  # a kernel is longer or shorter than the mean by up to this part: known when it is done
    slow_ns: int = 0  # from a gate that opens to the launch it takes up to so long, and sometimes ten times that
    very_slow: float = 0.02  # how often
    noise: Random = field(default_factory=lambda: Random(7))
    ready_ns: int = 0  # since when, at the earliest, the host may launch; 0 while it waits for the gate
    corrections: deque[int] = field(default_factory=deque)  # of the charges of what is queued

    def demand(self, now_ns: int) -> ComputeDemand:
        """Return the demand that the agent would read from the tenant's pages and believe."""
        honest = ComputeDemand(
            core_percent=self.core_percent,
            policy=self.policy,
            priority=self.priority,
            waiting_count=int(self.waiting),
            inflight_ns=sum(self.queue),
            demand_ns=0 if self.ungated else self.demand_ns,
            charged_ns=self.charged_ns - self.hidden_ns,
            unreported_ns=self.unreported_ns,
            seen_ns=self.seen_ns,
            kernel_ns=self.kernel_ns if self.charged_ns else 0,
            busy_until_ns=self.busy_until_ns,
        )
        said = replace(honest, **self.forged) if self.forged else honest
        return replace(said, kernel_ns=self.steps.kernel_ns(said.kernel_ns, said.charged_ns, now_ns))

    def passes(self, order: Order, now_ns: int) -> bool:
        """Return True if the shim's gate lets the tenant launch."""
        inflight = sum(self.queue)
        if inflight >= self.depth_ns:
            return False
        if self.ungated:
            return True
        if order.gate is Gate.TURN:
            assert order.window is not None
            assert order.round is not None
            length = order.window.end_ns - order.window.start_ns
            if length <= 0 or now_ns < order.window.start_ns:
                return False
            left = length - (now_ns - order.window.start_ns) % order.round.length_ns
            return inflight + self.kernel_ns // 2 <= left or (
                inflight == 0 and left > length // 2 and self.kernel_ns > length
            )
        return order.gate is Gate.OPEN or self.core_percent >= 100 or self.bucket_ns > 0 or self.rich


class World:
    """One card with its tenants and the arbiter."""

    def __init__(self, tenants: Mapping[str, Tenant], *, tick_ns: int = 2 * MS) -> None:
        self.tenants = {AllocationId(name): tenant for name, tenant in tenants.items()}
        self.now_ns = 1_000 * MS
        self.tick_ns = tick_ns
        self.state = SharedDevice()
        self.orders: dict[AllocationId, Order] = {}
        self.pending: dict[AllocationId, Order] = {}
        self._next_tick = self.now_ns
        self._next_window = self.now_ns
        self._window_ns = WINDOW_NS

    def run(self, duration_ns: int) -> None:
        """Let virtual time pass."""
        end = self.now_ns + duration_ns
        while self.now_ns < end:
            if self.now_ns >= self._next_tick:
                self._arbitrate()
                self._next_tick = self.now_ns + self.tick_ns
            if self.now_ns >= self._next_window:
                paced = any(tenant.throttle.pace for tenant in self.tenants.values())
                self._audit()
                self._window_ns = PACED_WINDOW_NS if paced else WINDOW_NS
                self._next_window = self.now_ns + self._window_ns
            for name, tenant in self.tenants.items():
                pace = tenant.throttle.pace
                if self.now_ns % (50 * MS) == 0 or (pace is not None and self.now_ns >= due_ns(pace)):
                    self._hold(name, None)
            for name, order in list(self.pending.items()):
                if order.round is None or order.round.from_ns <= self.now_ns:
                    self.orders[name] = self.pending.pop(name)
            for name, tenant in self.tenants.items():
                self._launch(tenant, self.orders[name])
            self._serve()
            self.now_ns += STEP_NS

    def share(self, name: str, since_ns: int) -> float:
        """Return the part of the card's time that a tenant had since then, 0 to 1."""
        tenant = self.tenants[AllocationId(name)]
        return sum(ns for at, ns in tenant.busy_at if at >= since_ns) / (self.now_ns - since_ns)

    def _arbitrate(self) -> None:
        demands = {name: tenant.demand(self.now_ns) for name, tenant in self.tenants.items()}
        self.state, decision = decide(self.state, demands, self.now_ns)
        for name, order in decision.orders.items():
            if self.orders.get(name) != order:
                self.pending[name] = order
            if name not in self.orders or order.gate is not Gate.TURN or self.orders[name].gate is not Gate.TURN:
                self.orders[name] = order

    def _audit(self) -> None:
        """Audit the tenants, as the agent does four times a second."""
        for name, tenant in self.tenants.items():
            seen_ns = tenant.busy_ns - tenant.seen_ns
            charged_ns = tenant.charged_ns - tenant.hidden_ns
            window = Window(
                now_ns=self.now_ns,
                elapsed_ns=self._window_ns,
                seen_ns=seen_ns,
                told_ns=charged_ns - tenant.told_ns,
                inflight_ns=tenant.demand(self.now_ns).inflight_ns,
            )
            tenant.audit, owed_ns = check(tenant.audit, window)
            tenant.seen_ns, tenant.told_ns = tenant.busy_ns, charged_ns
            tenant.unreported_ns += owed_ns
            self._hold(name, seen_ns, conceals=owed_ns > 0)

    def _hold(self, name: AllocationId, seen_ns: int | None, *, conceals: bool = False) -> None:
        order, tenant = self.orders[name], self.tenants[name]
        suspended = order.gate is Gate.TURN and order.window == EMPTY_WINDOW
        tenant.throttle = throttle(
            tenant.throttle,
            suspended=suspended,
            seen_ratio=None if seen_ns is None else seen_ns / self._window_ns,
            now_ns=self.now_ns,
            share=tenant.core_percent / 100 if tenant.policy is not PagePolicy.BEST_EFFORT else 1.0,
            seen_ns=seen_ns,
            under_reports=conceals,
        )

    def _launch(self, tenant: Tenant, order: Order) -> None:
        tenant.bucket_ns = min(BURST_NS, tenant.bucket_ns + STEP_NS * tenant.core_percent // 100)
        tenant.waiting = False
        while tenant.wants(self.now_ns) and not tenant.throttle.frozen:
            tenant.demand_ns = self.now_ns
            if not tenant.passes(order, self.now_ns):
                tenant.waiting = True
                tenant.ready_ns = 0
                return
            if tenant.slow_ns and not tenant.ready_ns:
                times = 10 if tenant.noise.random() < tenant.very_slow else 1
                tenant.ready_ns = self.now_ns + int(tenant.noise.random() * tenant.slow_ns * times)
            if self.now_ns < tenant.ready_ns:
                tenant.waiting = True
                return
            delta_ns = int(tenant.kernel_ns * tenant.jitter * tenant.noise.uniform(-1, 1)) if tenant.jitter else 0
            tenant.queue.append(tenant.kernel_ns + delta_ns)
            tenant.corrections.append(delta_ns)
            tenant.busy_until_ns = max(tenant.busy_until_ns, self.now_ns) + tenant.kernel_ns
            tenant.charged_ns += tenant.kernel_ns
            if tenant.conceals or tenant.ungated:
                tenant.hidden_ns += tenant.kernel_ns
            if order.gate is Gate.RATE:
                tenant.bucket_ns -= tenant.kernel_ns

    def _serve(self) -> None:
        left = STEP_NS
        while left > 0:
            ready = [tenant for tenant in self.tenants.values() if tenant.queue]
            if not ready:
                return
            slice_ns = min(max(1, left // len(ready)), *(tenant.queue[0] for tenant in ready))
            for tenant in ready:
                tenant.queue[0] -= slice_ns
                tenant.busy_ns += slice_ns
                tenant.busy_at.append((self.now_ns, slice_ns))
                if tenant.queue[0] <= 0:
                    tenant.queue.pop(0)
                    tenant.charged_ns += tenant.corrections.popleft()
            left -= slice_ns * len(ready)
