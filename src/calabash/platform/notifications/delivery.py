"""Threads that carry notices to their receivers.

Theory of operation. A few threads take the first delivery of one receiver's line each, and no two the same line. A receiver
that fails is left alone for a time that doubles, up to an hour, and everything behind it in its line with it; other lines go
on. Each try ends within seconds, so that receivers that do not answer take a part of the threads for a part of the time.
Nobody else waits for these threads, and they ask nothing while nothing waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.notify import RefusedForGoodError
from calabash.adapters.store.notices import NoticeTables
from calabash.model.errors import CalabashError
from calabash.model.notices import Delivery, Notification, NotificationState

THREADS = 3
PAUSE_S, PAUSE_S_MAX = 5.0, 3600.0
LOOK_S = 30.0  # at the latest after that is looked again: the calendar may have been set
STORE_PAUSE_S = 5.0
STOP_S = 15.0

log = structlog.get_logger(__name__)
Send = Callable[[Notification, Delivery], None]
Head = tuple[Notification, NotificationState, Delivery]


class Courier:
    """Carries what the tables have. ``wake`` from any thread."""

    def __init__(self, tables: NoticeTables, send: Send, clock: Clock) -> None:
        self._tables, self._send, self._clock = tables, send, clock
        self._news = threading.Condition()
        self._said = 0
        self._stopping = False
        self._busy: set[tuple[str, str]] = set()
        self._threads = [threading.Thread(target=self._run, name=f"courier-{n}", daemon=True) for n in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """What is on its way is carried on by the next pool."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join(timeout=STOP_S / THREADS)

    def wake(self) -> None:
        """Something may be to be sent."""
        with self._news:
            self._said += 1
            self._news.notify_all()

    def carry(self) -> bool:
        """One try of one delivery; False when none may be tried now."""
        head = self._claimed()
        if head is None:
            return False
        one, state, delivery = head
        try:
            self._try(one, state, delivery)
        finally:
            self._leave((one.tenant, one.name))
        return True

    def _claimed(self) -> Head | None:
        """The first delivery of a line that nobody else is at; None where there is none."""
        line = None
        heads = {(head[0].tenant, head[0].name) for head in self._heads()}
        with self._news:
            line = next((one for one in sorted(heads) if one not in self._busy), None)
            if line is None:
                return None
            self._busy.add(line)
        try:
            # What was read before the line was taken may have been delivered since.
            found = next((head for head in self._heads() if (head[0].tenant, head[0].name) == line), None)
        except BaseException:
            self._leave(line)
            raise
        if found is None:
            self._leave(line)
        return found

    def _heads(self) -> list[Head]:
        return self._tables.heads(now_s=self._clock.now_s())

    def _leave(self, line: tuple[str, str]) -> None:
        with self._news:
            self._busy.discard(line)
            self._said += 1
            self._news.notify_all()

    def _try(self, one: Notification, state: NotificationState, delivery: Delivery) -> None:
        try:
            self._send(one, delivery)
        except RefusedForGoodError as error:
            log.warning("a notice was refused", notification=one.name, tenant=one.tenant, error=error.message)
            self._tables.refused(delivery, at=self._clock.now_s(), error=error.message)
        except CalabashError as error:
            now_s = self._clock.now_s()
            pause_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(state.tries, 20))
            self._tables.postpone(delivery, at=now_s, next_at=now_s + pause_s, error=error.message)
        else:
            self._tables.taken(delivery, at=self._clock.now_s())

    def _run(self) -> None:
        while not self._stopping:
            said = self._said
            try:
                if self.carry():
                    continue
                pause_s = self._pause_s()
            except CalabashError as error:
                log.warning("notices cannot be sent now", error=error.message)
                pause_s = STORE_PAUSE_S
            except Exception:
                log.exception("sending a notice failed once and goes on")
                pause_s = STORE_PAUSE_S
            with self._news:
                if said == self._said and not self._stopping:
                    self._news.wait(timeout=pause_s)

    def _pause_s(self) -> float | None:
        next_s = self._tables.next_s()
        return None if next_s is None else max(0.2, min(LOOK_S, next_s - self._clock.now_s()))
