"""Why nobody can take an allocation now, or not any more: for whoever comes for it."""

from __future__ import annotations

from calabash.adapters.store import Store
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.allocations.table import Allocations

_FOR_OTHERS = {Reason.RECLAIM, Reason.PREEMPT}  # whoever asks again may wait for room


def gone(allocations: Allocations, store: Store, allocation: AllocationId) -> CalabashError:
    """The reason of its end, as far as one is known. Raises CalabashError where the journal cannot be read."""
    reason, explanation = allocations.ending(allocation) or ("", "")
    if allocations.get(allocation) is None and (ended := store.allocation(allocation)) is not None:
        reason, explanation = ended.reason, ended.explanation
    if not explanation:
        message = f"there is no allocation {allocation!r} held"
        return CalabashError(message, reason=Reason.NOT_FOUND, hint="see `calabash ps`")
    return CalabashError(
        f"allocation {allocation} was taken back before its program began: {explanation}",
        reason=Reason(reason) if reason in _FOR_OTHERS else Reason.CONFLICT,
        hint="ask again",
    )
