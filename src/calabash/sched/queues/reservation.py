"""A reservation: the start that a gang which found no room is promised, and the nodes that are held for it."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.sched.decisions import GangKey, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A promised start: who, when, and which requests on which node.

    Args:
        unknown_since_s: since when the start is a guess, because something that must end first gave no run time or has
            exceeded it; None while the start is known.
    """

    gang: GangKey
    start_s: float
    requests_on: dict[int, tuple[Request, ...]]
    unknown_since_s: float | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The requests that are waited for."""
        return tuple(request.id for requests in self.requests_on.values() for request in requests)

    def lapses_at_s(self, hold_s: float) -> float | None:
        """When it stops holding anything; None while the start is known."""
        return None if self.unknown_since_s is None else self.unknown_since_s + hold_s
