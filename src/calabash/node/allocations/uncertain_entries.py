"""Journal entries that may or may not have been written: a line to the store that broke does not say. They are closed until
that succeeds."""

from __future__ import annotations

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId


class DoubtfulEntries:
    """Used under the agent's lock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._causes: dict[AllocationId, CalabashError] = {}

    def add(self, allocation: AllocationId, error: BaseException) -> None:
        """One that is not held, whatever the journal says; ``error`` is why."""
        cause = error if isinstance(error, CalabashError) else CalabashError(str(error), reason=Reason.CONFLICT)
        self._causes[allocation] = cause
        self.close()

    def close(self) -> list[CalabashError]:
        """Close all of them; what went wrong with those that are tried again."""
        failures = []
        for allocation, cause in list(self._causes.items()):
            try:
                self._store.release(allocation, at=self._clock.now_s(), reason=cause.reason, explanation=cause.message)
            except CalabashError as error:
                failures.append(error)
            else:
                del self._causes[allocation]
        return failures
