"""VPCs that could not be carried out, and when each is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.model.errors import CalabashError

FIRST_S, MOST_S = 0.5, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why, since how many tries, and when the next is."""

    error: CalabashError
    tries: int
    next_s: float


class Backoff:
    """Troubles by VPC; the pause doubles with every failure that follows another."""

    def __init__(self) -> None:
        self.troubles: dict[str, Trouble] = {}

    def failed(self, vpc: str, error: CalabashError, now_s: float) -> Trouble:
        tries = self.troubles[vpc].tries + 1 if vpc in self.troubles else 1
        pause_s = min(MOST_S, FIRST_S * 2.0 ** min(tries - 1, 10))
        self.troubles[vpc] = Trouble(error=error, tries=tries, next_s=now_s + pause_s)
        return self.troubles[vpc]

    def well(self, vpc: str) -> None:
        self.troubles.pop(vpc, None)

    def due(self, now_s: float) -> list[str]:
        return [vpc for vpc, trouble in self.troubles.items() if trouble.next_s <= now_s]

    def next_s(self) -> float | None:
        """When the next is due."""
        return min((trouble.next_s for trouble in self.troubles.values()), default=None)

    def waits(self, vpc: str, now_s: float) -> bool:
        """Whether it is not to be tried yet."""
        trouble = self.troubles.get(vpc)
        return trouble is not None and trouble.next_s > now_s
