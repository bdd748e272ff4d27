"""Leadership loop: a thread that acquires and renews the lease, and the number of the current term.

A term begins when this replica acquires leadership and ends when it loses leadership. If it acquires leadership again
right after, a new term begins, because another replica may have led in between. Callers remember the term in which they
made a decision, and write its results only while that term lasts.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import structlog

from calabash.kubernetes.leader.colocated import Candidate
from calabash.model.errors import CalabashError

log = structlog.get_logger(__name__)

_RETRY_S = 0.5  # between attempts while the API server does not answer


class LeadershipLoop:
    """Thread that acquires and renews the lease; the module describes terms.

    Args:
        election: the candidate.
        every_s: seconds between attempts to renew or acquire the lease.
        stepped: called after each attempt, with True if the API server answered.
    """

    def __init__(self, election: Candidate, *, every_s: float, stepped: Callable[[bool], object]) -> None:
        self._election = election
        self._every_s = every_s
        self._on_step = stepped
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing the lease and end the current term; ``term`` returns 0 from now on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def resign(self) -> None:
        """Release the lease, so that another replica can lead at once. A failure is logged only."""
        try:
            self._election.resign()
        except CalabashError as error:
            log.warning("the lease was not given back", error=error.message)

    def term(self) -> int:
        """Return the number of the current term; 0 if this replica does not lead."""
        if self._stopping.is_set() or not self._election.leads():
            return 0
        return self._election.term()

    def holder(self) -> str:
        """Return the identity of the lease's holder at the last attempt; "" if the lease had no holder."""
        return self._election.holder()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._election.step()
            except Exception:  # without this thread the planner would never lead again
                log.exception("the lease could not be asked for")
            answered = self._election.in_touch()
            self._on_step(answered)
            every_s = self._every_s if answered else min(self._every_s, _RETRY_S)
            self._stopping.wait(every_s * random.uniform(0.75, 1.0))  # noqa: S311 - two that meet do not meet for ever
