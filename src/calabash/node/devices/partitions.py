"""How cards are cut into parts now, as their mode has last seen it, for everybody who looks at devices."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from calabash.model.device import Device, DeviceUuid
from calabash.model.mig import MigInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    enabled: bool
    instances: tuple[MigInstance, ...]
    parts: frozenset[DeviceUuid]


class Divisions:
    """The parts of all cards. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[DeviceUuid, _Division] = {}

    def set(
        self, card: DeviceUuid, *, enabled: bool, instances: tuple[MigInstance, ...], parts: Iterable[DeviceUuid]
    ) -> bool:
        """What stands on a card, and the names by which programs know the parts; whether that is news."""
        division = _Division(enabled=enabled, instances=instances, parts=frozenset(parts))
        with self._lock:
            news = self._of.get(card) != division
            self._of[card] = division
        return news

    def shown(self, device: Device) -> Device:
        """The card with what stands on it."""
        with self._lock:
            found = self._of.get(device.uuid)
        if found is None or not (found.enabled or device.mig_enabled):
            return device
        return replace(device, mig_enabled=found.enabled, mig_instances=found.instances)

    def card_of(self, part: DeviceUuid) -> DeviceUuid:
        """The card that a part is of; itself when it is none."""
        with self._lock:
            return next((card for card, division in self._of.items() if part in division.parts), part)
