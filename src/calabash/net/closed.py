"""Backends of load balancers whose program stopped listening while their port lives, as port and number. Pure."""

from __future__ import annotations

from collections.abc import Iterable

ClosedBackends = frozenset[tuple[str, int]]
NONE_CLOSED: ClosedBackends = frozenset()


def closed_text(closed: ClosedBackends) -> str:
    """Closed backends as one line, which ``read_closed`` understands."""
    return ",".join(f"{port}:{number}" for port, number in sorted(closed))


def read_closed(lines: Iterable[str]) -> ClosedBackends:
    """The backends of lines of ``closed_text``; what is not of its form is left out."""
    split = (item.rpartition(":") for line in lines for item in line.split(","))
    return frozenset((port, int(number)) for port, _, number in split if port and number.isdigit())
