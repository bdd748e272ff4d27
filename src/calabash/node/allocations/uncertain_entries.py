"""Journal entries of failed grants, which may have been written although the connection to the store broke."""

from __future__ import annotations

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId


class UncertainEntries:
    """Journal entries that failed grants may have written. Each is marked as released; failures are retried.

    Used under the agent's lock.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._causes: dict[AllocationId, CalabashError] = {}

    def add(self, allocation: AllocationId, error: BaseException) -> None:
        """Add the entry of an allocation whose grant failed with ``error``, and try to mark it as released."""
        cause = error if isinstance(error, CalabashError) else CalabashError(str(error), reason=Reason.CONFLICT)
        self._causes[allocation] = cause
        self.close()

    def close(self) -> list[CalabashError]:
        """Try to mark all entries as released. Return the errors; entries with errors are retried at the next call."""
        failures = []
        for allocation, cause in list(self._causes.items()):
            try:
                self._store.release(allocation, at=self._clock.now_s(), reason=cause.reason, explanation=cause.message)
            except CalabashError as error:
                failures.append(error)
            else:
                del self._causes[allocation]
        return failures
