"""Waiting for one descriptor, with no bound on its number: select(2) knows 1,024."""

from __future__ import annotations

import select


def readable(descriptor: int, within_s: float) -> bool:
    """Whether there is something to read, or nobody is left to write, within ``within_s`` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))
