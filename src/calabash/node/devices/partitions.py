"""MIG partitions of all cards, as last read by the executor of sharing mode ``mig``."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from calabash.model.device import Device, DeviceUuid
from calabash.model.mig import MigInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partitions:
    enabled: bool
    instances: tuple[MigInstance, ...]
    parts: frozenset[DeviceUuid]


class CardPartitions:
    """MIG partitions of all cards. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[DeviceUuid, _Partitions] = {}

    def set(
        self, card: DeviceUuid, *, enabled: bool, instances: tuple[MigInstance, ...], parts: Iterable[DeviceUuid]
    ) -> bool:
        """Set the MIG instances of a card and the UUIDs of its partitions; return True if they have changed.

        Args:
            enabled: the card is in MIG mode.
        """
        division = _Partitions(enabled=enabled, instances=instances, parts=frozenset(parts))
        with self._lock:
            news = self._of.get(card) != division
            self._of[card] = division
        return news

    def shown(self, device: Device) -> Device:
        """Return the device with its MIG mode and instances."""
        with self._lock:
            found = self._of.get(device.uuid)
        if found is None or not (found.enabled or device.mig_enabled):
            return device
        return replace(device, mig_enabled=found.enabled, mig_instances=found.instances)

    def card_of(self, part: DeviceUuid) -> DeviceUuid:
        """Return the UUID of the card to which a partition belongs; ``part`` itself if it is no known partition."""
        with self._lock:
            return next((card for card, division in self._of.items() if part in division.parts), part)
