"""Back-off of nodes on which kube-scheduler refused pods of a controller.

The controller's next pods are planned elsewhere.

The planner knows devices; kube-scheduler knows CPU, volumes and the rest. Where kube-scheduler does not ask the
planner, its refusal is the only sign that a node is unsuitable. Each further refusal doubles the waiting time, so that
a controller whose pods fit nowhere does not create them without pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from calabash.kubernetes.planner.state.affinity import HOSTNAME

PATIENCE_S = 5.0  # how long a refused pod is left alone
PATIENCE_MAX_S = 300.0
BACKOFF_S = 120.0
_NODES_MAX = 64
_OWNERS_MAX = 10_000


@dataclass(slots=True)
class _Refusals:
    nodes: dict[str, None] = field(default_factory=dict)
    times: int = 0
    until_s: float = 0.0
    evicted_until_s: float = 0.0


class NodeBackoff:
    """Excluded nodes and eviction intervals, by controller."""

    def __init__(self) -> None:
        self._by_owner: dict[str, _Refusals] = {}

    def patience_s(self, owner: str) -> float:
        """Return how long a pod of the controller must have been refused before it is evicted.

        PATIENCE_S, doubled for each earlier refusal.
        """
        found = self._by_owner.get(owner)
        return PATIENCE_S if found is None else min(PATIENCE_S * 2.0**found.times, PATIENCE_MAX_S)

    def add_refusal(self, owner: str, nodes: Iterable[str], now_s: float) -> None:
        """Exclude nodes for pods of the controller, for BACKOFF_S after the next refusal could count."""
        if len(self._by_owner) >= _OWNERS_MAX:
            self._by_owner.clear()
        found = self._by_owner.setdefault(owner, _Refusals())
        found.nodes |= dict.fromkeys(nodes)
        for name in list(found.nodes)[:-_NODES_MAX]:
            del found.nodes[name]
        found.until_s = now_s + BACKOFF_S + self.patience_s(owner)
        found.times = min(found.times + 1, 10)

    def add_eviction(self, owner: str, now_s: float) -> None:
        """Note an eviction for want of devices.

        The controller's next may follow after a pause, which doubles each time.
        """
        pause_s = self.patience_s(owner)
        self.add_refusal(owner, (), now_s)
        self._by_owner[owner].evicted_until_s = now_s + pause_s

    def may_evict(self, owner: str, now_s: float) -> bool:
        """Return True if the pause after the controller's last eviction is over."""
        found = self._by_owner.get(owner)
        return found is None or found.evicted_until_s <= now_s

    def selector(self, owner: str) -> tuple[str, ...]:
        """Return the node selector that excludes the controller's nodes; empty for none."""
        found = self._by_owner.get(owner)
        return (f"{HOSTNAME} notin ({','.join(found.nodes)})",) if found is not None and found.nodes else ()

    def take_expired(self, now_s: float) -> list[str]:
        """Remove and return the controllers whose nodes may be tried again."""
        over = [owner for owner, found in self._by_owner.items() if found.until_s <= now_s]
        for owner in over:
            del self._by_owner[owner]
        return over
