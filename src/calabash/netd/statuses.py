"""What is known of each object, and what of it has not been told yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from calabash.api.networks import NetworkConditionView, NetworkReport, NetworkStatusView
from calabash.model.network_status import ConditionKind
from calabash.netd.source import Key

MESSAGE_CHARACTERS_MAX = 500


class Statuses:
    """Statuses by object, and those that are new. Not for several threads.

    Args:
        now_s: seconds since 1970.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._known: dict[Key, NetworkStatusView] = {}
        self._new: dict[Key, None] = {}

    def of(self, key: Key) -> NetworkStatusView:
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
        """One condition; ``observed``: the generation that has been carried out, ``host``: where a port is, None: as it was."""
        before = self.of(key)
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

    def forget(self, keys: Iterable[Key]) -> None:
        """They are no more."""
        for key in keys:
            self._known.pop(key, None)
            self._new.pop(key, None)

    def keys(self) -> list[Key]:
        return list(self._known)

    def taken(self) -> list[NetworkReport]:
        """What is to be told now."""
        keys, self._new = list(self._new), {}
        return [NetworkReport(kind=key[0], name=key[1], status=self._known[key]) for key in keys]
