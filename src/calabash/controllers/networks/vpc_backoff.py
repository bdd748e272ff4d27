"""Exponential backoff of VPCs that could not be written."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.errors import CalabashError

FIRST_S, MOST_S = 0.5, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedVpc:
    """Failure of a VPC: last error, number of tries, and time of the next try."""

    error: CalabashError
    tries: int
    next_s: float


class Backoff:
    """Failures by VPC. The pause doubles with every consecutive failure, from FIRST_S to MOST_S seconds."""

    def __init__(self) -> None:
        self.failures: dict[str, FailedVpc] = {}

    def failed(self, vpc: str, error: CalabashError, now_s: float) -> FailedVpc:
        """Record a failure and return it."""
        tries = self.failures[vpc].tries + 1 if vpc in self.failures else 1
        pause_s = min(MOST_S, FIRST_S * 2.0 ** min(tries - 1, 10))
        self.failures[vpc] = FailedVpc(error=error, tries=tries, next_s=now_s + pause_s)
        return self.failures[vpc]

    def succeeded(self, vpc: str) -> None:
        self.failures.pop(vpc, None)

    def due(self, now_s: float) -> list[str]:
        """Return the VPCs to try again now."""
        return [vpc for vpc, failure in self.failures.items() if failure.next_s <= now_s]

    def next_s(self) -> float | None:
        """Return the time of the next try of any VPC; None if no VPC has failed."""
        return min((failure.next_s for failure in self.failures.values()), default=None)

    def waits(self, vpc: str, now_s: float) -> bool:
        """Return True if the VPC must not be tried yet."""
        failure = self.failures.get(vpc)
        return failure is not None and failure.next_s > now_s
