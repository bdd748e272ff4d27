"""The lead, kept by a thread that does nothing else, and counted in terms.

A term begins when the lead is taken and ends when it is lost, also when the same planner has it again right after: another
may have led in between. Whoever decides belongs to a term, and nothing of a term is written once it has ended.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import structlog

from calabash.kubernetes.leader.colocated import Candidate
from calabash.model.errors import CalabashError

log = structlog.get_logger(__name__)

_RETRY_S = 0.5  # an API server that was away is noticed so soon


class Lead:
    """See the module's description.

    Args:
        every_s: how often the lead is renewed, or asked for.
        stepped: called after each time; True: the API server answered.
    """

    def __init__(self, election: Candidate, *, every_s: float, stepped: Callable[[bool], object]) -> None:
        self._election = election
        self._every_s = every_s
        self._stepped = stepped
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; nothing of any term is written from now on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def resign(self) -> None:
        """Let others lead at once."""
        try:
            self._election.resign()
        except CalabashError as error:
            log.warning("the lease was not given back", error=error.message)

    def term(self) -> int:
        """The term that runs now; 0: somebody else leads, or nobody."""
        if self._stopping.is_set() or not self._election.leads():
            return 0
        return self._election.term()

    def holder(self) -> str:
        """Who leads, as last seen."""
        return self._election.holder()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._election.step()
            except Exception:  # whatever it was: a thread that ended would never lead again
                log.exception("the lease could not be asked for")
            answered = self._election.in_touch()
            self._stepped(answered)
            every_s = self._every_s if answered else min(self._every_s, _RETRY_S)
            self._stopping.wait(every_s * random.uniform(0.75, 1.0))  # noqa: S311 - two that meet do not meet for ever
