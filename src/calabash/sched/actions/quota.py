"""What is in quota and what is borrowed, unit by unit.

Running units of a queue are ordered by priority, cores before surplus, then age; the longest prefix-with-skips that stays
within what the queue is guaranteed is *in quota*, the rest is *borrowed*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from calabash.sched.queues.fairshare import EPSILON
from calabash.sched.queues.gang import Unit


def mark_in_quota(units: Iterable[Unit], guaranteed: Sequence[float], managed: Sequence[bool]) -> list[Unit]:
    """The units with ``in_quota`` set; see the theory of operation.

    Args:
        units: all running units of one queue.
        guaranteed: what the queue is guaranteed, per resource.
        managed: resources that anybody deserves; without any, everything is borrowed.
    """
    left = list(guaranteed)
    resources = [r for r, on in enumerate(managed) if on]
    marked = []
    for unit in sorted(units, key=lambda u: (-u.priority, not u.core, u.started_at_s, u.sequence)):
        fits = bool(resources) and all(unit.amount[r] <= left[r] + EPSILON for r in resources)
        if fits:
            for r in resources:
                left[r] -= unit.amount[r]
        marked.append(unit if fits is unit.in_quota else replace(unit, in_quota=fits))
    return marked
