"""Probes and metrics of the planner: ``/livez``, ``/readyz`` and ``/metrics``, on a port of their own.

The extender's port is on the loopback interface only, because its callers can bind pods. The port of this server may be
reached from anywhere in the cluster: it answers only GET requests without a body, and shows no data of any tenant.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Protocol

from calabash.adapters.exposition import CONTENT_TYPE
from calabash.api.part_metrics import PLANNER_LEADS, PLANNER_NODES, PLANNER_PODS, PLANNER_READY, PLANNER_SKIPPED
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.telemetry import Sample, Telemetry
from calabash.model.errors import CalabashError
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply

BOUNDS = Bounds(body_bytes=0, connections=64, idle_s=30.0)
LEADER_CACHE_S = 5.0  # how long the answer of ``any_leader`` is used


class PlannerState(Protocol):
    """State of the planner that probes and metrics show."""

    def leads(self) -> bool: ...

    def is_healthy(self) -> bool:
        """Return False if the planner leads but its last decision is too old (``service.STUCK_S``)."""
        ...

    def unsynced(self) -> list[str]:
        """Return the kinds of objects of which no complete list has been read from the API server yet."""
        ...

    def skipped_counts(self) -> Mapping[str, int]: ...

    def pods_by_stage(self) -> Mapping[str, int]:
        """Return the number of pods of each stage; empty while this planner does not lead."""
        ...

    def nodes(self) -> int:
        """Return the number of nodes on which pods are placed."""
        ...

    @property
    def figures(self) -> Telemetry:
        """Counters of the running planner."""
        ...


class PlannerStatus:
    """Handler of the requests for probes and metrics of the planner, for a ``SmallServer``.

    Args:
        any_leader: asks the API server if any replica leads this planner's part of the cluster. Raises CalabashError.
        now_s: monotonic clock in seconds.
    """

    def __init__(
        self, planner: PlannerState, any_leader: Callable[[], bool], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._planner = planner
        self._any_leader = any_leader
        self._now_s = now_s
        self._checked_at_s: float | None = None
        self._leader_fault_seen = ""

    async def handle(self, question: HttpQuestion) -> HttpReply:
        """Answer one request."""
        if question.method != "GET":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "GET is answered here")
        match question.path:
            case "/livez":
                return _text(HTTPStatus.OK, "ok")
            case "/readyz":
                fault = await asyncio.to_thread(self.fault)
                return _text(HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK, fault or "ok")
            case "/metrics":
                body = await asyncio.to_thread(self._planner.figures.page, self._gather)
                return HttpReply(body=body, content_type=CONTENT_TYPE)
        return _text(HTTPStatus.NOT_FOUND, "livez, readyz and metrics are answered here")

    def fault(self) -> str:
        """Return why this planner is not ready; "" if it is."""
        if not self._planner.is_healthy():
            return "no decision was made for long"
        if self._planner.leads():
            return ""
        unsynced = self._planner.unsynced()
        if unsynced:
            return f"not read from the API server yet: {', '.join(unsynced)}"
        now_s = self._now_s()
        if self._checked_at_s is None or now_s >= self._checked_at_s + LEADER_CACHE_S:
            self._checked_at_s = now_s
            self._leader_fault_seen = self._leader_fault()
        return self._leader_fault_seen

    def _leader_fault(self) -> str:
        try:
            return "" if self._any_leader() else "no planner leads: nothing is planned"
        except CalabashError as error:
            return f"whether any planner leads is not known: {error.message}"

    def _gather(self) -> Iterable[Sample]:
        planner = self._planner
        yield PLANNER_LEADS, (), int(planner.leads())
        yield PLANNER_READY, (), int(not self.fault())
        yield PLANNER_NODES, (), planner.nodes()
        for kind, count in planner.skipped_counts().items():
            yield PLANNER_SKIPPED, (kind,), count
        stages = planner.pods_by_stage()
        for stage in Stage:
            yield PLANNER_PODS, (stage.value,), stages.get(stage.value, 0)


def _text(status: HTTPStatus, text: str) -> HttpReply:
    return HttpReply(status=status, body=text.encode(), content_type="text/plain")
