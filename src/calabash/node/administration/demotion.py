"""Shares that are best-effort for a while, whatever was promised, and then are what they were.

The promise stays in the journal; what changes is one word of a slot's limits, which the arbiter reads at its next look. It is
written anew from what is wanted each time, so a pool that was killed in between leaves nothing that lasts.
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
    """Make the shares of these best-effort and those of all others what they were granted; who was lowered now, and who raised.

    Slices whose share the arbiter does not keep (whole cards, MIG, MPS, turns of the driver) stay as they are.
    """
    fell: list[AllocationId] = []
    rose: list[AllocationId] = []
    for record in parts.allocations.records():
        promised = POLICY_CODE[record.request.policy]
        wanted = PagePolicy.BEST_EFFORT if record.id in lowered else promised
        try:
            limits = parts.slots.pages(record.id).limits
        except CalabashError:
            continue  # it is just going, or its slot is being made again
        changed = False
        for index in range(limits.device_count):
            now = limits.device(index).policy
            if now in _SHARED and now != wanted:
                limits.set_policy(index, wanted)
                changed = True
        if changed:
            (fell if record.id in lowered else rose).append(record.id)
    return fell, rose
