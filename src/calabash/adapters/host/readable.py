"""Wait for one descriptor to become readable, also above select(2)'s limit of 1,024."""

from __future__ import annotations

import select


def readable(descriptor: int, within_s: float) -> bool:
    """Wait until the descriptor has data or its writers have closed it; return False after ``within_s`` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))
