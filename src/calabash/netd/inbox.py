"""What other threads have for the reconciler: news of the book, rows that somebody changed, hosts that moved on."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from calabash.netd.source import NetworkNews


@dataclass(slots=True)
class Mail:
    """What came; ``everything``: look at all there is."""

    news: list[NetworkNews] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    everything: bool = False
    moved: bool = False

    def __bool__(self) -> bool:
        return bool(self.news or self.touched or self.everything or self.moved)


class Inbox:
    """Safe for threads. None of what others call waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._mail = Mail(everything=True)
        self._quiet = False
        self.stopped = False

    def news(self, news: NetworkNews) -> None:
        """The book has changed."""
        with self._changed:
            self._mail.news.append(news)
            self._changed.notify_all()

    def touched(self, owners: Iterable[str]) -> None:
        """Rows of these have changed."""
        with self._changed:
            self._mail.touched.update(owners)
            self._changed.notify_all()

    def everything(self) -> None:
        """What is known of the database may be old."""
        with self._changed:
            self._mail.everything = True
            self._changed.notify_all()

    def moved(self) -> None:
        """Hosts have carried something out, or have come or gone."""
        with self._changed:
            self._mail.moved = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def taken(self) -> Mail:
        """All that came since the last time."""
        with self._changed:
            mail, self._mail = self._mail, Mail()
            self._quiet = False
            return mail

    def wait(self, within_s: float, *, quiet: bool) -> None:
        """Until something comes or the time is over; ``quiet``: whether there is nothing left to do but wait."""
        with self._changed:
            self._quiet = quiet
            self._changed.wait_for(lambda: self._mail or self.stopped, within_s)

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to do and nothing has come."""
        with self._changed:
            return self._quiet and not (self._mail.news or self._mail.touched or self._mail.everything)
