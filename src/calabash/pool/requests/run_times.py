"""Enforce the longest run time of tenants: warn before it is over, then end the allocation."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from calabash.adapters.clock import Clock
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.tenancy import Tenant
from calabash.model.units import format_duration
from calabash.node.agent import NodeAgent
from calabash.platform.tenancy.store import TenancyStore

PERIOD_S = 1.0
NOTICE_S = 60.0  # before the end; at most a tenth of the run time

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Remaining run time of one allocation.

    Args:
        most_s: longest run time of the tenant, in seconds.
        left_s: remaining seconds; negative when the time is over.
    """

    id: AllocationId
    tenant: str
    most_s: float
    left_s: float

    @property
    def near(self) -> bool:
        return self.left_s <= min(NOTICE_S, self.most_s / 10)


def run_times(
    records: Iterable[AllocationRecord], tenants: Mapping[str, Tenant], *, now_s: float
) -> tuple[RunTime, ...]:
    """Return the remaining run time of all allocations whose tenant has a limit. The run time is counted from the grant."""
    found = []
    for record in records:
        tenant = tenants.get(record.request.tenant)
        if tenant is not None and tenant.run_s_max > 0:
            left_s = record.granted_at + tenant.run_s_max - now_s
            found.append(RunTime(id=record.id, tenant=tenant.name, most_s=tenant.run_s_max, left_s=left_s))
    return tuple(found)


class RunTimes:
    """Thread that enforces the run times of tenants."""

    def __init__(self, *, agent: NodeAgent, tenancy: TenancyStore, clock: Clock) -> None:
        self._agent = agent
        self._tenancy = tenancy
        self._clock = clock
        self._told: set[AllocationId] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="run times", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def enforce(self) -> None:
        """Check all allocations once: warn or end those that are near or past their run time."""
        found = run_times(self._agent.records(), self._tenancy.people().tenants, now_s=self._clock.now_s())
        self._told &= {one.id for one in found}
        for one in found:
            if one.left_s <= 0:
                most = f"the {format_duration(one.most_s)} that tenant {one.tenant} runs at most are over"
                self._agent.end(one.id, reason=Reason.RUN_TIME, explanation=most)
            elif one.near and one.id not in self._told:
                self._told.add(one.id)
                left = f"it is ended in {format_duration(one.left_s)}: tenant {one.tenant} runs"
                message = f"{left} {format_duration(one.most_s)} at most"
                self._agent.event("run_time_notice", reason=Reason.RUN_TIME, allocation=one.id, message=message)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.enforce()
            except CalabashError as error:
                log.warning("cannot enforce run times now", error=error.message)
            except Exception:
                log.exception("enforcing run times failed and will be repeated")
