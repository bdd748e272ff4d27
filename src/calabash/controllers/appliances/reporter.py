"""Reports of the condition READY of gateways and load balancers to the pool, from the states of their replicas.

One process may manage all gateway hosts, as in a lab, or each host has its own. A process that manages a single host cannot
see the other replica, so it reports only objects whose active replica is on its host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from calabash.api.networks import NetworkConditionView, NetworkReport, NetworkStatusView
from calabash.controllers.appliances.replica_state import ReplicaState, ready_condition
from calabash.controllers.sources.network_source import Key
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind
from calabash.model.network_status import NetworkCondition

_MESSAGE_MAX = 500

log = structlog.get_logger(__name__)


class ApplianceReporter:
    """Collects the states of replicas from the threads of all managed hosts, and reports changed conditions.

    Args:
        report: sends reports; may raise CalabashError, after which they are sent again.
        hosts: number of managed hosts.
        all_hosts: True if these are all gateway hosts.
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
        self._states: dict[str, Sequence[ReplicaState]] = {}
        self._reported: dict[Key, NetworkCondition] = {}

    def update(self, host: str, states: Sequence[ReplicaState]) -> None:
        """Set the states of all replicas of one host. Thread-safe."""
        with self._lock:
            self._states[host] = states

    def send(self) -> None:
        """Report conditions that changed since the last report. Failed reports are sent again at the next call.

        Does nothing until ``update`` was called for every managed host.
        """
        with self._lock:
            states = list(self._states.values())
        if len(states) < self._hosts:
            return
        found = self._conditions([one for of_host in states for one in of_host])
        fresh = {key: one for key, one in found.items() if _content(self._reported.get(key)) != _content(one)}
        if fresh:
            try:
                self._report([_report(key, one) for key, one in fresh.items()])
            except CalabashError as error:
                log.warning("states of appliances cannot be reported", why=error.message)
                return
        self._reported = {key: fresh.get(key, self._reported.get(key, one)) for key, one in found.items()}

    def _conditions(self, states: Sequence[ReplicaState]) -> dict[Key, NetworkCondition]:
        items: dict[Key, list[ReplicaState]] = {}
        for state in states:
            if state.item:
                items.setdefault((NetworkKind(state.kind), state.item), []).append(state)
        return {
            key: ready_condition(of_item, self._now_s())
            for key, of_item in items.items()
            if self._all or any(state.active for state in of_item)
        }


def _content(condition: NetworkCondition | None) -> object:
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
