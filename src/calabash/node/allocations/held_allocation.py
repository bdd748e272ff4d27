"""Entry of the table of held allocations: the journal record and the state that only this process knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Text
from calabash.node.allocations.retention import RetentionPolicy


@dataclass(slots=True)
class HeldAllocation:
    """A held allocation: its journal record and state that only this process knows."""

    record: AllocationRecord
    since_ns: int
    ending: tuple[str, Text] | None = None  # reason, explanation
    end_noted: bool = False  # the reason of the end is journalled
    gently: bool = False  # wait for its programs; send no signal
    making: bool = False  # its mode is creating what it needs; it has no slot yet
    adopted: bool = False  # granted by an earlier agent, which may have ended before it wrote the start
    start_unwritten: bool = False  # the start is journalled at the next sweep; after a crash it is observed again
    final_usage: Sequence[UsageRecord] | None = None
    populated: bool = False  # it had a live member process at the last observation

    def last_usage(self, usage_of: Callable[[AllocationRecord], Sequence[UsageRecord]]) -> Sequence[UsageRecord]:
        """Return the final usage records. They are computed once, so that a retried write writes the same records."""
        self.final_usage = usage_of(self.record) if self.final_usage is None else self.final_usage
        return self.final_usage

    def note_end(self, store: Store) -> Sequence[CalabashError]:
        """Journal the reason of the end, before programs are ended. Return errors; the programs are ended anyway."""
        if self.ending is None or self.end_noted:
            return ()
        try:
            store.note(self.record.id, end=self.ending)
        except CalabashError as error:
            return (error,)
        self.end_noted = True
        return ()

    def awaited(self, retention: RetentionPolicy, clock: Clock) -> bool:
        """Return True if the allocation is kept although it has no member process; see ``RetentionPolicy``."""
        return retention.retains(self.record, clock.monotonic_ns() - self.since_ns)

    @property
    def end_reason(self) -> tuple[str, Text]:
        if self.ending is not None:
            return self.ending
        if self.record.state is AllocationState.GRANTED and self.adopted:
            return "ended", "nobody was in the slice when a new pool looked"
        if self.record.state is AllocationState.GRANTED:
            return Reason.TIMEOUT, "nobody took the slice"
        return "ended", "its last process ended"
