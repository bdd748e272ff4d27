"""Lower compute shares to best-effort temporarily and restore them.

The granted policy stays in the journal. Only the policy in the slot's limits page changes, which the arbiter reads at
its next poll. Each call computes it anew from the journal, so nothing has to be restored after a crash of the pool.
"""

from __future__ import annotations

from collections.abc import Collection

from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.slots.content import POLICY_CODE
from calabash.node.slots.layout import PagePolicy
from calabash.node.wiring import NodeParts

_SHARED = frozenset({PagePolicy.FIXED, PagePolicy.BURST, PagePolicy.BEST_EFFORT})


def lower_shares(parts: NodeParts, lowered: Collection[AllocationId]) -> tuple[list[AllocationId], list[AllocationId]]:
    """Set the shares of the given allocations to best-effort and restore those of all others.

    Returns the allocations that were lowered and those that were restored by this call. Slices whose share the arbiter
    does not enforce (whole cards, MIG, MPS, time slices of the driver) are unchanged.
    """
    lowered_now: list[AllocationId] = []
    restored: list[AllocationId] = []
    for record in parts.allocations.records():
        promised = POLICY_CODE[record.request.policy]
        wanted = PagePolicy.BEST_EFFORT if record.id in lowered else promised
        try:
            limits = parts.slots.pages(record.id).limits
        except CalabashError:
            continue  # the allocation is being released, or its slot is being created
        changed = False
        for index in range(limits.device_count):
            now = limits.device(index).policy
            if now in _SHARED and now != wanted:
                limits.set_policy(index, wanted)
                changed = True
        if changed:
            (lowered_now if record.id in lowered else restored).append(record.id)
    return lowered_now, restored
