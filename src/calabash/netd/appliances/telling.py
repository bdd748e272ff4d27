"""What keepers see of their appliances, told to the pool as READY of gateways and balancers when it changes.

The keepers of all gateway hosts may be one process, as in a lab, or one on each host. One that sees a single host does not know
whether the other replica has the address: it speaks only of what is active at its own host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from calabash.api.networks import NetworkConditionView, NetworkReport, NetworkStatusView
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind
from calabash.model.network_status import NetworkCondition
from calabash.netd.appliances.watching import ApplianceSight, condition
from calabash.netd.source import Key

_MESSAGE_MAX = 500

log = structlog.get_logger(__name__)


class ApplianceNews:
    """Gathers what several keepers see. ``seen`` is for their threads, ``tell`` for one.

    Args:
        report: takes what is newly known to the pool. It may raise CalabashError, and is tried again then.
        hosts: how many keepers there are; all: whether they keep all gateway hosts.
        now_s: seconds since 1970.
    """

    def __init__(
        self,
        report: Callable[[Sequence[NetworkReport]], None],
        *,
        hosts: int,
        all_hosts: bool,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._report, self._hosts, self._all, self._now_s = report, hosts, all_hosts, now_s
        self._lock = threading.Lock()
        self._sights: dict[str, Sequence[ApplianceSight]] = {}
        self._told: dict[Key, NetworkCondition] = {}

    def seen(self, host: str, sights: Sequence[ApplianceSight]) -> None:
        """All that one keeper sees now."""
        with self._lock:
            self._sights[host] = sights

    def tell(self) -> None:
        """Tells what is new. Who cannot be told is told the next time."""
        with self._lock:
            sights = list(self._sights.values())
        if len(sights) < self._hosts:
            return
        found = self._conditions([one for of_host in sights for one in of_host])
        fresh = {key: one for key, one in found.items() if _said(self._told.get(key)) != _said(one)}
        if fresh:
            try:
                self._report([_report(key, one) for key, one in fresh.items()])
            except CalabashError as error:
                log.warning("what is seen of appliances cannot be told", why=error.message)
                return
        self._told = {key: fresh.get(key, self._told.get(key, one)) for key, one in found.items()}

    def _conditions(self, sights: Sequence[ApplianceSight]) -> dict[Key, NetworkCondition]:
        items: dict[Key, list[ApplianceSight]] = {}
        for sight in sights:
            if sight.item:
                items.setdefault((NetworkKind(sight.kind), sight.item), []).append(sight)
        return {
            key: condition(of_item, self._now_s())
            for key, of_item in items.items()
            if self._all or any(sight.active for sight in of_item)
        }


def _said(condition: NetworkCondition | None) -> object:
    return condition and (condition.holds, condition.reason, condition.message)


def _report(key: Key, found: NetworkCondition) -> NetworkReport:
    view = NetworkConditionView(
        kind=found.kind,
        holds=found.holds,
        reason=found.reason,
        message=found.message[:_MESSAGE_MAX],
        since_s=found.since_s,
    )
    return NetworkReport(kind=key[0], name=key[1], status=NetworkStatusView(conditions=[view]), partial=True)
