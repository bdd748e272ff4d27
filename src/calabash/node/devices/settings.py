"""Settings of cards: defaults of the node and those that an administrator sets for one card."""

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
    """Default settings of the cards of a node.

    Args:
        spill_mib: host memory of the node to which programs may spill memory that does not fit on their card.
        spill: True: programs on every card may spill; False: only on cards for which an administrator permits it.
        replicas: largest number of tenants that share a card by time slices.
        interval: duration of a time slice; "": the driver's default.
    """

    spill_mib: int = 0
    spill: bool = True
    replicas: int = REPLICAS
    interval: str = ""

    def shown(self, device: Device, entry: CardEntry) -> Device:
        """Return the device with the settings that apply to it."""
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
    """Requested changes of the settings of one card; None: unchanged.

    Value 0 of ``replicas`` and value ``auto`` of the others select the default of the node.
    """

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
        """Return the fields of ``CardEntry`` to store."""
        fields: dict[str, object] = {}
        if self.replicas is not None:
            fields["replicas"] = self.replicas
        if self.interval is not None:
            fields["interval"] = "" if self.interval == AUTO else self.interval
        if self.spill is not None:
            fields["spill"] = "" if self.spill == AUTO else self.spill
        return fields

    def said(self) -> str:
        """Return the requested settings as text for an event; "" if none is changed."""
        words = [f"replicas {self.replicas or AUTO}"] if self.replicas is not None else []
        words += [f"interval {self.interval}"] if self.interval is not None else []
        words += [f"spill {self.spill}"] if self.spill is not None else []
        return ", ".join(words)


def require_possible(
    device: Device, wanted: Wanted, settings: CardSettings, *, sharers: int, interval_of: Callable[[], object]
) -> None:
    """Raise an error if a card cannot have these settings now.

    Args:
        sharers: number of tenants that share the card by time slices now.
        interval_of: reads the duration of time slices from the driver; raises CalabashError if the driver cannot set
            it.
    """
    replicas = wanted.replicas or settings.replicas
    if wanted.replicas is not None and replicas < sharers:
        raise CalabashError(
            f"{sharers} tenants share device {device.index} by time slices, more than replicas {replicas}",
            reason=Reason.CONFLICT,
            hint=f"wait until some have ended; calabash device drain {device.index} keeps new ones off it",
        )
    if wanted.spill == ON and not settings.spill_mib:
        raise CalabashError("this node gives no host memory for spill", reason=Reason.NOT_PERMITTED)
    if wanted.interval not in (None, AUTO):
        interval_of()
