"""A thread that asks questions which may never be answered.

A driver call cannot be interrupted: when a card hangs, so does the caller, inside the kernel. Therefore calls are made
by a worker thread and waited for with a deadline. When the deadline passes, the worker is left where it is, and
every further question fails at once until it comes back: a hung card costs one thread, never the daemon.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from calabash.model.errors import CalabashError, Reason

T = TypeVar("T")


class _Question(Generic[T]):
    """One call and, later, its answer. A bare lock, which the answer releases, costs a tenth of an event."""

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
        """Wait for the answer, once; False when it has not come by then."""
        return self._unanswered.acquire(timeout=timeout_s)


class DeadlineThread:
    """Runs calls one after the other in a thread of its own; ``ask`` gives up after a deadline."""

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
        """The call's answer or its error; TIMEOUT when it takes longer, or while an earlier call still hangs."""
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
        """Ends the thread once its present call returns; does not wait for one that hangs."""
        self._questions.put(None)
