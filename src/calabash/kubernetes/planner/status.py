"""State of the planner for probes and Prometheus: ``/livez``, ``/readyz`` and ``/metrics``, on a port of their own.

kube-scheduler's port is for the loopback alone, because its caller may bind pods. This port may be reached from anywhere in the
cluster: it answers GET without a body, and says nothing of any tenant.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from calabash.kubernetes.http1 import Bounds, HttpQuestion, HttpReply
from calabash.model.errors import CalabashError

BOUNDS = Bounds(body_bytes=0, connections=64, idle_s=30.0)
LOOK_S = 5.0  # how long it is believed that some planner leads
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerMetric:
    """A metric of the planner, for ``/metrics`` and the reference."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


LEADS = PlannerMetric(
    name="calabash_planner_leads",
    kind="gauge",
    labels=(),
    help="1 while this planner leads and decides, 0 while it does not.",
)
READY = PlannerMetric(
    name="calabash_planner_ready",
    kind="gauge",
    labels=(),
    help="1 while this planner leads, or has read all objects and another planner leads; 0 otherwise.",
)
SKIPPED = PlannerMetric(
    name="calabash_planner_skipped_objects_total",
    kind="counter",
    labels=("kind",),
    help="Versions of objects that cannot be read, or on which the planner fails, and that it leaves out.",
)
METRICS = (LEADS, READY, SKIPPED)


class PlannerState(Protocol):
    """The state of the planner that probes and metrics show."""

    def leads(self) -> bool: ...

    def well(self) -> bool:
        """Return False if it leads and has not decided for long."""
        ...

    def unsynced(self) -> list[str]:
        """Kinds of which no list is complete yet."""
        ...

    def skipped_counts(self) -> Mapping[str, int]: ...


class PlannerStatus:
    """Handles the requests of an ``http.SmallServer``.

    Args:
        somebody_leads: asks the API server whether any planner leads the same nodes. Raises CalabashError.
    """

    def __init__(
        self, planner: PlannerState, somebody_leads: Callable[[], bool], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._planner = planner
        self._somebody_leads = somebody_leads
        self._now_s = now_s
        self._looked_at_s: float | None = None
        self._seen = ""

    async def handle(self, question: HttpQuestion) -> HttpReply:
        """One request."""
        if question.method != "GET":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "GET is answered here")
        match question.path:
            case "/livez":
                return _text(HTTPStatus.OK, "ok")
            case "/readyz":
                fault = await asyncio.to_thread(self.fault)
                return _text(HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK, fault or "ok")
            case "/metrics":
                body = await asyncio.to_thread(self._metrics)
                return HttpReply(body=body.encode(), content_type=_CONTENT_TYPE)
        return _text(HTTPStatus.NOT_FOUND, "livez, readyz and metrics are answered here")

    def fault(self) -> str:
        """Return why this planner is not ready; "" when it is."""
        if not self._planner.well():
            return "no decision was made for long"
        if self._planner.leads():
            return ""
        unsynced = self._planner.unsynced()
        if unsynced:
            return f"not read from the API server yet: {', '.join(unsynced)}"
        now_s = self._now_s()
        if self._looked_at_s is None or now_s >= self._looked_at_s + LOOK_S:
            self._looked_at_s = now_s
            self._seen = self._nobody()
        return self._seen

    def _nobody(self) -> str:
        try:
            return "" if self._somebody_leads() else "no planner leads: nothing is planned"
        except CalabashError as error:
            return f"whether any planner leads is not known: {error.message}"

    def _metrics(self) -> str:
        lines: list[str] = []
        samples: list[tuple[PlannerMetric, dict[str, int]]] = [
            (LEADS, {"": int(self._planner.leads())}),
            (READY, {"": int(not self.fault())}),
            (SKIPPED, {f'{{kind="{kind}"}}': count for kind, count in sorted(self._planner.skipped_counts().items())}),
        ]
        for metric, values in samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{labels} {value}" for labels, value in values.items()]
        return "\n".join(lines) + "\n"


def _text(status: HTTPStatus, text: str) -> HttpReply:
    return HttpReply(status=status, body=text.encode(), content_type="text/plain")
