"""Thread that makes driver calls with a deadline.

A driver call cannot be interrupted: if a card hangs, the caller hangs inside the kernel. Calls are therefore made by a
worker thread, and the caller waits until a deadline. If the deadline passes, the worker thread stays in the driver
call. Further calls fail at once until the hung call has returned. So a hung card costs one thread and never blocks the
daemon.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from calabash.model.errors import CalabashError, Reason

T = TypeVar("T")


class _Question(Generic[T]):
    """Call for the worker thread, and its result.

    The caller waits on a lock, which the worker releases when the result is there. A lock costs a tenth of a threading.Event.
    """

    __slots__ = ("_unanswered", "answer", "call", "error")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self._unanswered = threading.Lock()
        self._unanswered.acquire()
        self.answer: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.answer = self.call()
        except BaseException as error:  # handed to the caller
            self.error = error
        finally:
            self._unanswered.release()

    @property
    def is_done(self) -> bool:
        return not self._unanswered.locked()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the result; return False if it has not come within ``timeout_s``. Must be called only once."""
        return self._unanswered.acquire(timeout=timeout_s)


class DeadlineThread:
    """Thread that runs calls one after the other. ``ask`` waits for the result of its call until a deadline."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._questions: queue.SimpleQueue[_Question[Any] | None] = queue.SimpleQueue()
        self._stuck: _Question[Any] | None = None
        self._lock = threading.Lock()
        # A daemon thread: a hung driver must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            question.run()

    def ask(self, call: Callable[[], T], *, what: str, timeout_s: float) -> T:
        """Run the call in the thread and return its result or raise its error.

        Args:
            what: name of the call in error messages.

        Raises CalabashError(TIMEOUT) if the call takes longer than ``timeout_s`` or an earlier call still hangs.
        """
        with self._lock:
            if self._stuck is not None and not self._stuck.is_done:
                raise self._timeout(f"{what} was not tried: the driver has not answered an earlier call yet")
            self._stuck = None
        question = _Question(call)
        self._questions.put(question)
        if not question.wait(timeout_s):
            with self._lock:
                self._stuck = question
            raise self._timeout(f"{what} got no answer from the driver within {timeout_s:g} s")
        if question.error is not None:
            raise question.error
        return question.answer  # type: ignore[return-value]

    @staticmethod
    def _timeout(message: str) -> CalabashError:
        return CalabashError(message, reason=Reason.TIMEOUT, hint="look at the kernel log; the card may need a reset")

    def close(self) -> None:
        """End the thread after its current call; do not wait for a call that hangs."""
        self._questions.put(None)
