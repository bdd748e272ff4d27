"""Prometheus metrics of the cluster's server: requests, usage records, and the age of the nodes' last reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from calabash.api.part_metrics import (
    SERVER_OLDEST_REPORT,
    SERVER_REQUESTS,
    SERVER_USAGE_RECORDS,
    ClusterPart,
)
from calabash.kubernetes.telemetry import Sample, Telemetry, metrics_server
from calabash.model.allocation import UsageRecord
from calabash.platform.http.server import Application, Message, Receive, Send
from calabash.transport.small_server import SmallServer

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class ServerFigures:
    """The metrics of one server.

    Args:
        nodes: returns the names of the cluster's nodes that have devices.
        now_s: returns the time in seconds since the epoch.
    """

    def __init__(self, nodes: Callable[[], Collection[str]], *, now_s: Callable[[], float] = time.time) -> None:
        self._nodes = nodes
        self._now_s = now_s
        self._began_s = now_s()
        self._seen_at_s: Callable[[], Mapping[str, float]] | None = None
        self._expiry: Callable[[], Iterable[Sample]] = tuple
        self.telemetry = Telemetry(ClusterPart.SERVER)

    def server(self, *, host: str, port: int) -> SmallServer:
        """Return an HTTP server on which Prometheus can read the metrics; the caller starts and stops it."""
        return metrics_server(self.telemetry, self._gather, host=host, port=port)

    def collects(self, seen_at_s: Callable[[], Mapping[str, float]], expiry: Callable[[], Iterable[Sample]]) -> None:
        """Add the metrics of the collection of usage records, which not every server runs.

        Args:
            seen_at_s: returns, by node, the time at which it last sent usage, in seconds since the epoch.
            expiry: returns the metric of the time at which the collection's server certificate expires.
        """
        self._seen_at_s, self._expiry = seen_at_s, expiry

    def taken(self, records: Sequence[UsageRecord]) -> None:
        """Count usage records that have been written to the database."""
        self.telemetry.count(SERVER_USAGE_RECORDS, by=len(records))

    def counting(self, application: Application) -> Application:
        """Return an ASGI application that calls another one and counts its HTTP requests by method and status."""

        async def counted(scope: Any, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            status = 0

            async def noting(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await application(scope, receive, noting)
            finally:
                method = scope["method"] if scope["method"] in METHODS else "other"
                self.telemetry.count(SERVER_REQUESTS, method, str(status))

        return counted

    def _gather(self) -> Iterable[Sample]:
        yield from self._expiry()
        nodes = self._nodes()
        if self._seen_at_s is not None and nodes:
            seen, now_s = self._seen_at_s(), self._now_s()
            oldest_s = min(max(seen.get(node, 0.0), self._began_s) for node in nodes)
            yield SERVER_OLDEST_REPORT, (), max(0.0, now_s - oldest_s)
