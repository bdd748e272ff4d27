"""Derive faults and lasting conditions of a card from its readings and driver events (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from calabash.adapters.gpu.protocol import DeviceEvent, EventKind
from calabash.model.device import DeviceReading, Slowdown
from calabash.node.health.conditions import HealthEvent
from calabash.node.health.policy import EVENT_OF, FaultClass, HealthPolicy

THERMAL, POWER_BRAKE, POWER_CAP, LINKS, PAGES = "thermal", "power_brake", "power_cap", "nvlink", "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Values of earlier readings with which the next reading of a card is compared.

    Args:
        ecc_uncorrected: uncorrected memory errors at the last reading; None before the first.
        nvlinks: largest number of NVLinks that were up at any reading.
        since_s: since when the card is slowed down, by reason.
    """

    ecc_uncorrected: int | None = None
    nvlinks: int = 0
    since_s: Mapping[Slowdown, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Findings of a reading: faults as (event, cause) in the order in which they apply; conditions as (name, cause)."""

    faults: tuple[tuple[HealthEvent, str], ...] = ()
    standing: tuple[tuple[str, str], ...] = ()


def judge_reading(
    before: Watched, reading: DeviceReading, policy: HealthPolicy, *, now_s: float, divided: bool = False
) -> tuple[Watched, Findings]:
    """Return the values to keep for the next reading, and the findings of this one.

    Args:
        divided: the card is in MIG mode. Its memory errors are then ignored here, because the counters do not say in
            which partition an error was; XIDs do.
    """
    faults: list[tuple[HealthEvent, str]] = []
    standing: list[tuple[str, str]] = []

    def found(fault: FaultClass, name: str, cause: str) -> None:
        if fault is FaultClass.SUSPECT:
            standing.append((name, cause))
        elif fault in EVENT_OF:
            faults.append((EVENT_OF[fault], cause))

    memory = policy.memory
    if before.ecc_uncorrected is not None:
        new = reading.ecc_uncorrected - before.ecc_uncorrected
        if new < 0:
            faults.append((HealthEvent.RESET_DONE, "its error counters started again: it was reset"))
        elif memory.uncorrected and new >= memory.uncorrected and not divided:
            faults.append((HealthEvent.NEEDS_RESET, f"{reading.ecc_uncorrected} uncorrected memory errors"))
    if reading.row_remap_failed:
        found(memory.row_remap_failed, PAGES, "a row of its memory could not be remapped")
    elif reading.row_remap_pending:
        found(memory.row_remap_pending, PAGES, "a row of its memory is remapped at the next reset")
    if reading.retired_pages_pending:
        found(memory.page_retirement_pending, PAGES, "a page of its memory is retired at the next reset")
    since = {reason: before.since_s.get(reason, now_s) for reason in reading.throttled}
    standing += _slowed(since, reading, policy, now_s)
    links = max(before.nvlinks, reading.nvlinks_up)
    if 0 <= reading.nvlinks_up < links:
        found(policy.nvlink.down, LINKS, f"{links - reading.nvlinks_up} of {links} NVLinks are down")
    after = replace(before, ecc_uncorrected=reading.ecc_uncorrected, nvlinks=links, since_s=since)
    return after, Findings(faults=tuple(faults), standing=tuple(standing))


def judge_event(event: DeviceEvent, policy: HealthPolicy, *, divided: bool) -> tuple[HealthEvent | None, str]:
    """Return the health event that follows from a driver event (None if none does), and its cause as text.

    Args:
        divided: the card is in MIG mode.
    """
    if event.kind is EventKind.XID:
        return EVENT_OF.get(policy.xid.class_of(event.code)), f"XID {event.code}"
    if event.kind is EventKind.ECC_DOUBLE_BIT:
        told = policy.memory.uncorrected == 1 and not divided
        return (HealthEvent.NEEDS_RESET if told else None), "double-bit memory error"
    if event.kind is EventKind.LOST:
        return HealthEvent.GONE, "the driver lost it"
    return None, ""


def _slowed(
    since: Mapping[Slowdown, float], reading: DeviceReading, policy: HealthPolicy, now_s: float
) -> list[tuple[str, str]]:
    rules = policy.throttling
    found = []
    for reason, name, limit_s, cause in (
        (Slowdown.THERMAL, THERMAL, rules.thermal_s, f"slowed down by heat at {reading.temperature_c} C"),
        (Slowdown.POWER_BRAKE, POWER_BRAKE, rules.power_brake_s, "braked by its power supply"),
        (Slowdown.POWER_CAP, POWER_CAP, rules.power_cap_s, f"at its power limit, {reading.power_w:.0f} W"),
    ):
        if limit_s and reason in since and now_s - since[reason] >= limit_s:
            found.append((name, cause))
    return found
