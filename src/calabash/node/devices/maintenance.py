"""Reservation of cards for tests and resets, and the recovery steps that are due."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.device import Card
from calabash.node.health.conditions import HealthStep
from calabash.node.health.policy import HealthPolicy

RESETTING = "being reset"


class CardSteps:
    """Recovery steps and reservations of the cards of an inventory. Methods may be called from any thread.

    Args:
        cards, lock: the inventory's cards by UUID, and the lock that protects them.
        policy: rules of recovery.
        lent: returns True for a card that is detached from its driver.
    """

    def __init__(
        self,
        cards: Callable[[], Mapping[DeviceUuid, Card]],
        lock: threading.Lock,
        policy: HealthPolicy,
        lent: Callable[[DeviceUuid], bool],
    ) -> None:
        self._cards = cards
        self._lock = lock
        self._policy = policy
        self._lent = lent

    def due(self, now_ns: int) -> list[tuple[DeviceUuid, HealthStep]]:
        """Return the recovery steps that are due now."""
        found = []
        with self._lock:
            for uuid, card in self._cards().items():
                step = card.condition.step
                if step is HealthStep.RESET and not self._policy.recovery.reset:
                    continue
                at_ns = card.test_at_ns if step is HealthStep.TEST else card.reset_at_ns
                if step is not None and not card.reserved and not self._lent(uuid) and now_ns >= at_ns:
                    found.append((uuid, step))
        return found

    def postpone(self, uuid: DeviceUuid, *, test_at_ns: int | None = None, reset_at_ns: int | None = None) -> None:
        """Set the earliest time of the next test or reset of a card."""
        with self._lock:
            card = self._cards()[uuid]
            card.test_at_ns = card.test_at_ns if test_at_ns is None else test_at_ns
            card.reset_at_ns = card.reset_at_ns if reset_at_ns is None else reset_at_ns

    @contextmanager
    def reserved(self, uuids: Sequence[DeviceUuid], why: str) -> Iterator[None]:
        """Context in which these cards are not allocated.

        Args:
            why: operation for which the cards are reserved, such as "being tested", for messages.

        Raises:
            CalabashError: CONFLICT if one of the cards is reserved already.
        """
        with self._lock:
            wanted = [self._cards()[uuid] for uuid in uuids]
            for card in wanted:
                if card.reserved:
                    text = f"device {card.device.index} is {card.reserved}"
                    raise CalabashError(text, reason=Reason.CONFLICT, hint="try again in a moment")
            for card in wanted:
                card.reserved = why
        try:
            yield
        finally:
            with self._lock:
                for card in wanted:
                    card.reserved = ""
