"""Reservation of nodes for a blocked gang, with the estimated time of its start."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.sched.decisions import GangKey, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes that are held for a blocked gang until an estimated start.

    Args:
        start_s: estimated start of the gang.
        requests_on: requests of the gang by the row of the node that is held for them.
        unknown_since_s: time since which the start is a guess, because a request that must end first gave no run time or
            has exceeded it; None while the start is known.
    """

    gang: GangKey
    start_s: float
    requests_on: dict[int, tuple[Request, ...]]
    unknown_since_s: float | None = None

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Return the IDs of the requests for which nodes are held."""
        return tuple(request.id for requests in self.requests_on.values() for request in requests)

    def expires_at_s(self, hold_s: float) -> float | None:
        """Return the time at which a reservation of unknown start expires; None while the start is known.

        Args:
            hold_s: time for which such a reservation is kept (``Options.reservation_hold_s``).
        """
        return None if self.unknown_since_s is None else self.unknown_since_s + hold_s
