"""Back-off of nodes: if kube-scheduler refuses a pod on some nodes, its controller's next pods are planned elsewhere.

The planner chooses nodes by their devices and does not know their CPU, memory and volumes. In clusters whose
kube-scheduler does not ask the planner, a refusal is the only sign that a node is unsuitable for a pod. Each further
refusal doubles the time before the next pod of the controller is evicted. Otherwise a controller whose pods fit on no
node would create and lose pods without pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from calabash.kubernetes.objects.names import HOSTNAME

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
        """Return how many seconds a pod of the controller must have been refused before it is evicted.

        This is PATIENCE_S, doubled for each earlier refusal, and at most PATIENCE_MAX_S.
        """
        found = self._by_owner.get(owner)
        return PATIENCE_S if found is None else min(PATIENCE_S * 2.0**found.times, PATIENCE_MAX_S)

    def add_refusal(self, owner: str, nodes: Iterable[str], now_s: float) -> None:
        """Record that kube-scheduler refused a pod of the controller: exclude the nodes for pods of this controller.

        The nodes are excluded for ``patience_s`` and BACKOFF_S more seconds, so that they are still excluded when the
        next refused pod of the controller may be evicted. Each refusal doubles ``patience_s``, up to its maximum.
        """
        if len(self._by_owner) >= _OWNERS_MAX:
            self._by_owner.clear()
        found = self._by_owner.setdefault(owner, _Refusals())
        found.nodes |= dict.fromkeys(nodes)
        for name in list(found.nodes)[:-_NODES_MAX]:
            del found.nodes[name]
        found.until_s = now_s + BACKOFF_S + self.patience_s(owner)
        found.times = min(found.times + 1, 10)

    def add_eviction(self, owner: str, now_s: float) -> None:
        """Record an eviction for want of devices.

        The next such eviction of a pod of this controller is permitted after a pause that doubles each time.
        """
        pause_s = self.patience_s(owner)
        self.add_refusal(owner, (), now_s)
        self._by_owner[owner].evicted_until_s = now_s + pause_s

    def may_evict(self, owner: str, now_s: float) -> bool:
        """Return True if the pause after the controller's last eviction is over."""
        found = self._by_owner.get(owner)
        return found is None or found.evicted_until_s <= now_s

    def selector(self, owner: str) -> tuple[str, ...]:
        """Return the node selector that leaves out the nodes excluded for the controller; empty if there are none."""
        found = self._by_owner.get(owner)
        return (f"{HOSTNAME} notin ({','.join(found.nodes)})",) if found is not None and found.nodes else ()

    def take_expired(self, now_s: float) -> list[str]:
        """Return the controllers whose excluded nodes may be tried again, and delete their state."""
        over = [owner for owner, found in self._by_owner.items() if found.until_s <= now_s]
        for owner in over:
            del self._by_owner[owner]
        return over
