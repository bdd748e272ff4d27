"""Prometheus metrics of the agent: devices by health, slices, enforced limits, and unsent usage records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from calabash.api.part_metrics import (
    AGENT_DENIED,
    AGENT_DEVICES,
    AGENT_READY,
    AGENT_REGISTRATIONS,
    AGENT_SLICES,
    AGENT_THROTTLED,
    AGENT_USAGE_WAITING,
    ClusterPart,
)
from calabash.kubernetes.telemetry import Sample, Telemetry, metrics_server
from calabash.model.device import Health
from calabash.model.request import AllocationId
from calabash.node.snapshot import NodeSnapshot
from calabash.transport.small_server import SmallServer


class AgentFigures:
    """Metrics of one agent. The agent's main loop calls ``observe``; the metrics may be read from any thread."""

    def __init__(self) -> None:
        self.telemetry = Telemetry(ClusterPart.AGENT)
        self._now: tuple[Sample, ...] = ((AGENT_READY, (), 0), (AGENT_SLICES, (), 0), (AGENT_USAGE_WAITING, (), 0))
        self._uses: dict[AllocationId, tuple[int, float]] = {}  # last counters of the allocations
        self._registrations = 0

    def server(self, *, host: str, port: int, fault: Callable[[], str]) -> SmallServer:
        """Return an HTTP server of the metrics and of ``/readyz``; the caller starts and stops it.

        Args:
            host, port: address of the server; port 0 for any free port.
            fault: returns why the agent is not ready; "" if it is.
        """
        return metrics_server(self.telemetry, lambda: self._now, host=host, port=port, fault=fault)

    def observe(self, snapshot: NodeSnapshot, *, ready: bool, registrations: int = 0, waiting: int = 0) -> None:
        """Update the metrics from the state of the node.

        Args:
            snapshot: the devices and allocations of the node.
            ready: True if the agent grants allocations and the kubelet has registered its devices.
            registrations: number of registrations at the kubelet since the agent began to serve.
            waiting: number of usage records that the server has not acknowledged.
        """
        self._count_limits(snapshot)
        more = registrations - self._registrations if registrations >= self._registrations else registrations
        self._registrations = registrations
        self.telemetry.count(AGENT_REGISTRATIONS, by=more)
        health = Counter(state.device.health for state in snapshot.devices)
        self._now = (
            (AGENT_READY, (), int(ready)),
            *((AGENT_DEVICES, (one.value,), health[one]) for one in Health),
            (AGENT_SLICES, (), sum(len(state.held) for state in snapshot.devices)),
            (AGENT_USAGE_WAITING, (), waiting),
        )

    def _count_limits(self, snapshot: NodeSnapshot) -> None:
        """Count the memory allocations that were refused, and the time of throttling, since the last call.

        Both are taken from counters of each allocation. A counter that has decreased belongs to a new slot, and adds
        nothing.
        """
        uses = {
            one.record.id: (sum(use.denied for use in one.use), sum(use.throttled_s for use in one.use))
            for one in snapshot.allocations
        }
        for name, (denied, throttled_s) in uses.items():
            before_denied, before_s = self._uses.get(name, (0, 0.0))
            self.telemetry.count(AGENT_DENIED, by=max(0, denied - before_denied))
            self.telemetry.count(AGENT_THROTTLED, by=max(0.0, throttled_s - before_s))
        self._uses = uses
