"""Threads that deliver notices to their receivers.

Theory of operation. Each receiver has a queue of deliveries. ``THREADS`` threads each take the first delivery of a queue; no
two threads take from the same queue. After a failed try the whole queue of that receiver pauses for a time that doubles, up to
``PAUSE_S_MAX``; other queues continue. Each try ends within seconds, so that unresponsive receivers cannot block all threads
for long. Nothing else waits for these threads, and they do not query the database while no delivery waits.
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
POLL_S_MAX = 30.0  # longest wait for the time of a delivery: the clock may have been set
STORE_PAUSE_S = 5.0
STOP_S = 15.0

log = structlog.get_logger(__name__)
Send = Callable[[Notification, Delivery], None]
Head = tuple[Notification, NotificationState, Delivery]


class DeliveryThreads:
    """Threads that deliver the stored notices to their receivers.

    Args:
        tables: stored notices.
        send: sends one delivery; raises RefusedForGoodError if it must not be repeated, or CalabashError.
        clock: the time.
    """

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
        """End the threads within STOP_S seconds.

        Remaining deliveries stay stored and are tried after the next start.
        """
        with self._news:
            self._stopping = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join(timeout=STOP_S / THREADS)

    def wake(self) -> None:
        """Wake the threads because a delivery may be due."""
        with self._news:
            self._said += 1
            self._news.notify_all()

    def deliver_next(self) -> bool:
        """Try one delivery; return False if none is due."""
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
        """Return the first delivery of a queue that no other thread uses, and mark the queue as used by this thread.

        Return None if no such queue has a due delivery.
        """
        line = None
        heads = {(head[0].tenant, head[0].name) for head in self._heads()}
        with self._news:
            line = next((one for one in sorted(heads) if one not in self._busy), None)
            if line is None:
                return None
            self._busy.add(line)
        try:
            # Read again: the delivery may have been made before the queue was marked.
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
                if self.deliver_next():
                    continue
                pause_s = self._pause_s()
            except CalabashError as error:
                log.warning("notices cannot be sent now", error=error.message)
                pause_s = STORE_PAUSE_S
            except Exception:
                log.exception("sending a notice failed and will be repeated")
                pause_s = STORE_PAUSE_S
            with self._news:
                if said == self._said and not self._stopping:
                    self._news.wait(timeout=pause_s)

    def _pause_s(self) -> float | None:
        next_s = self._tables.next_s()
        return None if next_s is None else max(0.2, min(POLL_S_MAX, next_s - self._clock.now_s()))
