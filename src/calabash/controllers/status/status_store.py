"""Status conditions of network objects, and the reports that have not been sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from calabash.api.networks import NetworkConditionView, NetworkReport, NetworkStatusView
from calabash.controllers.sources.network_source import Key
from calabash.model.network_status import ConditionKind

MESSAGE_CHARACTERS_MAX = 500


class Statuses:
    """The present status of each object, and the set of those that changed since the last reports. Not thread-safe.

    Args:
        now_s: returns the time in seconds since 1970.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._known: dict[Key, NetworkStatusView] = {}
        self._new: dict[Key, None] = {}

    def status_of(self, key: Key) -> NetworkStatusView:
        return self._known.get(key, NetworkStatusView())

    def set(
        self,
        key: Key,
        kind: ConditionKind,
        holds: bool | None,
        reason: str,
        message: str = "",
        *,
        observed: int | None = None,
        host: str | None = None,
    ) -> None:
        """Set one condition. The time of the condition changes only if ``holds`` changes.

        Args:
            key: kind and name of the object.
            holds: True or False; None if it is not known.
            reason: code of the cause.
            message: explanation for the user.
            observed: generation of the object that has been carried out; None keeps the current value.
            host: host to which a port is attached; None keeps the current value.
        """
        before = self.status_of(key)
        conditions = {condition.kind: condition for condition in before.conditions}
        message = message[:MESSAGE_CHARACTERS_MAX]
        old = conditions.get(kind)
        if old is None or (old.holds, old.reason, old.message) != (holds, reason, message):
            since_s = old.since_s if old is not None and old.holds == holds else self._now_s()
            conditions[kind] = NetworkConditionView(
                kind=kind, holds=holds, reason=reason, message=message, since_s=since_s
            )
        after = NetworkStatusView(
            observed_generation=before.observed_generation if observed is None else observed,
            conditions=[conditions[one] for one in ConditionKind if one in conditions],
            host=before.host if host is None else host,
        )
        if after != before:
            self._known[key] = after
            self._new[key] = None

    def remove(self, keys: Iterable[Key]) -> None:
        """Delete the statuses of removed objects."""
        for key in keys:
            self._known.pop(key, None)
            self._new.pop(key, None)

    def keys(self) -> list[Key]:
        return list(self._known)

    def take_reports(self) -> list[NetworkReport]:
        """Return the reports of all statuses that changed since the last call."""
        keys, self._new = list(self._new), {}
        return [NetworkReport(kind=key[0], name=key[1], status=self._known[key]) for key in keys]
