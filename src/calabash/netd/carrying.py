"""What goes between a pool and the controller: news one way, reports the other, each in a thread that waits."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import structlog

from calabash.api.networks import NetworkReport
from calabash.model.errors import CalabashError
from calabash.netd.reconciler import Reconciler
from calabash.netd.source import Key, NetworkSource

WAIT_S = 25.0  # for news, in one question
PAUSE_S, PAUSE_S_MAX = 0.2, 2.0
GATHER_S = 0.05  # reports of one moment go together

log = structlog.get_logger(__name__)


class Carrier:
    """Takes a source's news to a reconciler, and its reports back. What cannot be told is told later."""

    def __init__(self, source: NetworkSource, reconciler: Reconciler) -> None:
        self._source, self._reconciler = source, reconciler
        self._stop = threading.Event()
        self._there = threading.Condition()
        self._reports: dict[Key, NetworkReport] = {}
        self._threads = [
            threading.Thread(target=self._follow, name="network news", daemon=True),
            threading.Thread(target=self._tell, name="network reports", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """A thread that waits for the source ends with its question, and is not waited for."""
        self._stop.set()
        with self._there:
            self._there.notify_all()

    def report(self, reports: Iterable[NetworkReport]) -> None:
        """Tell this soon; it does not wait."""
        with self._there:
            self._reports.update(((report.kind, report.name), report) for report in reports)
            self._there.notify_all()

    def _follow(self) -> None:
        pause_s, after = PAUSE_S, -1
        while not self._stop.is_set():
            try:
                news = self._source.news(after, WAIT_S)
            except CalabashError as error:
                log.warning("the book of networks cannot be read", why=error.message)
                self._stop.wait(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
                after = -1  # another pool may answer the next time: its revisions mean something else
                continue
            pause_s = PAUSE_S
            if news.whole or news.revision != after:
                self._reconciler.take(news)
            after = news.revision

    def _tell(self) -> None:
        pause_s = PAUSE_S
        while not self._stop.is_set():
            with self._there:
                self._there.wait_for(lambda: self._reports or self._stop.is_set())
            self._stop.wait(GATHER_S)
            with self._there:
                reports, self._reports = self._reports, {}
            try:
                self._source.report(list(reports.values()))
                pause_s = PAUSE_S
            except CalabashError as error:
                log.warning("what became of networks cannot be told", why=error.message)
                with self._there:
                    self._reports = reports | self._reports
                self._stop.wait(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
