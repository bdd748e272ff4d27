"""Errors for requests that name an allocation which has ended or is ending."""

from __future__ import annotations

from calabash.adapters.store import Store
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message
from calabash.model.request import AllocationId
from calabash.node.allocations.table import Allocations

_RETRY_REASONS = {Reason.RECLAIM, Reason.PREEMPT}  # a new request may wait for capacity


def ended_error(allocations: Allocations, store: Store, allocation: AllocationId) -> CalabashError:
    """Build the error for a request that names an allocation which is not held any more, or is ending.

    The reason of the error is RECLAIM or PREEMPT if the allocation ended for that reason, NOT_FOUND if the journal does
    not know an end of it, and CONFLICT otherwise.

    Raises:
        CalabashError: the journal cannot be read.
    """
    reason, explanation = allocations.ending(allocation) or ("", "")
    if allocations.get(allocation) is None and (ended := store.allocation(allocation)) is not None:
        reason, explanation = ended.reason, ended.explanation
    if not explanation:
        message = f"there is no allocation {allocation!r} held"
        return CalabashError(message, reason=Reason.NOT_FOUND, hint="see `calabash ps`")
    return CalabashError(
        Message(
            "allocation {allocation} ended before its program started: {why}", allocation=allocation, why=explanation
        ),
        reason=Reason(reason) if reason in _RETRY_REASONS else Reason.CONFLICT,
        hint="request it again",
    )
