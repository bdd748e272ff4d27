"""Threads between a pool and the reconciler: one fetches changes of networks, one sends status reports."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import structlog

from calabash.api.networks import NetworkReport
from calabash.controllers.networks.reconciler import Reconciler
from calabash.controllers.sources.network_source import Key, NetworkSource
from calabash.model.errors import CalabashError

WAIT_S = 25.0  # of one long-polling request
PAUSE_S, PAUSE_S_MAX = 0.2, 2.0
GATHER_S = 0.05  # delay that combines reports into one request

log = structlog.get_logger(__name__)


class PoolSync:
    """Passes changes of the networks to the reconciler, and its reports to the pool. Failed reports are sent again."""

    def __init__(self, source: NetworkSource, reconciler: Reconciler) -> None:
        self._source, self._reconciler = source, reconciler
        self._stop = threading.Event()
        self._condition = threading.Condition()
        self._reports: dict[Key, NetworkReport] = {}
        self._threads = [
            threading.Thread(target=self._fetch_changes, name="network news", daemon=True),
            threading.Thread(target=self._send_reports, name="network reports", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop both threads. Does not wait for a pending request of the source."""
        self._stop.set()
        with self._condition:
            self._condition.notify_all()

    def report(self, reports: Iterable[NetworkReport]) -> None:
        """Queue reports for sending. Does not block."""
        with self._condition:
            self._reports.update(((report.kind, report.name), report) for report in reports)
            self._condition.notify_all()

    def _fetch_changes(self) -> None:
        pause_s, after = PAUSE_S, -1
        while not self._stop.is_set():
            try:
                update = self._source.fetch_update(after, WAIT_S)
            except CalabashError as error:
                log.warning("networks cannot be read", why=error.message)
                self._stop.wait(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
                after = -1  # the next reply may come from another pool with other revisions
                continue
            pause_s = PAUSE_S
            if update.whole or update.revision != after:
                self._reconciler.apply_update(update)
            after = update.revision

    def _send_reports(self) -> None:
        pause_s = PAUSE_S
        while not self._stop.is_set():
            with self._condition:
                self._condition.wait_for(lambda: self._reports or self._stop.is_set())
            self._stop.wait(GATHER_S)
            with self._condition:
                reports, self._reports = self._reports, {}
            try:
                self._source.report(list(reports.values()))
                pause_s = PAUSE_S
            except CalabashError as error:
                log.warning("status reports cannot be sent", why=error.message)
                with self._condition:
                    self._reports = reports | self._reports
                self._stop.wait(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
