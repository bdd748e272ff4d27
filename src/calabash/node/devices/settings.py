"""How cards are given out, as far as an operator decides it: for all of them, and otherwise for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from calabash.model.device import REPLICAS, REPLICAS_MAX, Device, Interval
from calabash.model.errors import CalabashError, Reason
from calabash.node.health.store import CardEntry

AUTO = "auto"  # as for all cards
ON, OFF = "on", "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSettings:
    """For all cards of a node.

    Args:
        spill_mib: host memory that it gives for what does not fit on its cards.
        spill: whether every card may use it; otherwise those that are named.
        replicas: how many tenants use a card in turns.
        interval: how long these turns are; "": as the driver makes them.
    """

    spill_mib: int = 0
    spill: bool = True
    replicas: int = REPLICAS
    interval: str = ""

    def shown(self, device: Device, entry: CardEntry) -> Device:
        """A card with what holds for it."""
        spills = entry.spill == ON if entry.spill else self.spill
        return replace(
            device,
            pinned=entry.mode,
            spill_mib=self.spill_mib if spills else 0,
            replicas=entry.replicas or self.replicas,
            interval=entry.interval or self.interval,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an operator wants of one card; None: as it is. ``replicas`` 0 and ``auto``: as for all cards."""

    replicas: int | None = None
    interval: str | None = None
    spill: str | None = None

    def __post_init__(self) -> None:
        if self.replicas is not None and not 0 <= self.replicas <= REPLICAS_MAX:
            raise CalabashError(f"replicas {self.replicas} is out of range", hint=f"1 to {REPLICAS_MAX}, or auto")
        if self.interval is not None and self.interval not in (AUTO, *Interval):
            raise CalabashError(
                f"interval {self.interval[:64]!r} is not known", hint=f"one of: {AUTO}, {', '.join(Interval)}"
            )
        if self.spill is not None and self.spill not in (AUTO, ON, OFF):
            raise CalabashError(f"spill {self.spill[:64]!r} is not known", hint=f"one of: {AUTO}, {ON}, {OFF}")

    def entry_fields(self) -> dict[str, object]:
        """What is kept with the card."""
        fields: dict[str, object] = {}
        if self.replicas is not None:
            fields["replicas"] = self.replicas
        if self.interval is not None:
            fields["interval"] = "" if self.interval == AUTO else self.interval
        if self.spill is not None:
            fields["spill"] = "" if self.spill == AUTO else self.spill
        return fields

    def said(self) -> str:
        """For people."""
        words = [f"replicas {self.replicas or AUTO}"] if self.replicas is not None else []
        words += [f"interval {self.interval}"] if self.interval is not None else []
        words += [f"spill {self.spill}"] if self.spill is not None else []
        return ", ".join(words)


def require_possible(
    device: Device, wanted: Wanted, settings: CardSettings, *, sharers: int, interval_of: Callable[[], object]
) -> None:
    """Raises CalabashError where a card cannot be so.

    Args:
        sharers: how many tenants use it in turns now.
        interval_of: asks the driver for the length of turns; raises CalabashError where it cannot be set.
    """
    replicas = wanted.replicas or settings.replicas
    if wanted.replicas is not None and replicas < sharers:
        raise CalabashError(
            f"{sharers} tenants are on device {device.index} in turns, replicas {replicas} are asked",
            reason=Reason.CONFLICT,
            hint=f"wait until some have ended; calabash device drain {device.index} lets nobody new on it",
        )
    if wanted.spill == ON and not settings.spill_mib:
        raise CalabashError("this node gives none of its memory to what is spilled", reason=Reason.NOT_PERMITTED)
    if wanted.interval not in (None, AUTO):
        interval_of()
