"""Nodes that kube-scheduler refused to the pods of an owner: the next ones that it makes are planned elsewhere for a while.

The planner knows devices; CPU, volumes and the rest are kube-scheduler's. Where that does not ask, a refusal is the only
word of it. Each further refusal within a while lasts twice as long, so that an owner whose pods fit nowhere is not
busy making them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from calabash.kubernetes.planner.state.affinity import HOSTNAME

PATIENCE_S = 5.0  # so long is a pod left alone that kube-scheduler has refused
PATIENCE_MAX_S = 300.0
SHUN_S = 120.0
_NODES_MAX = 64
_OWNERS_MAX = 10_000


@dataclass(slots=True)
class _Refusals:
    nodes: dict[str, None] = field(default_factory=dict)
    times: int = 0
    until_s: float = 0.0
    evicted_until_s: float = 0.0


class Shunned:
    """By owner: nodes to be left out, for a while."""

    def __init__(self) -> None:
        self._by_owner: dict[str, _Refusals] = {}

    def patience_s(self, owner: str) -> float:
        """How long to wait before the next refusal counts."""
        found = self._by_owner.get(owner)
        return PATIENCE_S if found is None else min(PATIENCE_S * 2.0**found.times, PATIENCE_MAX_S)

    def refuse(self, owner: str, nodes: Iterable[str], now_s: float) -> None:
        """kube-scheduler found no room on these."""
        if len(self._by_owner) >= _OWNERS_MAX:
            self._by_owner.clear()
        found = self._by_owner.setdefault(owner, _Refusals())
        found.nodes |= dict.fromkeys(nodes)
        for name in list(found.nodes)[:-_NODES_MAX]:
            del found.nodes[name]
        found.until_s = now_s + SHUN_S + self.patience_s(owner)
        found.times = min(found.times + 1, 10)

    def evict(self, owner: str, now_s: float) -> None:
        """A pod of the owner is evicted for want of room: the next one may be after a pause, each twice as long."""
        pause_s = self.patience_s(owner)
        self.refuse(owner, (), now_s)
        self._by_owner[owner].evicted_until_s = now_s + pause_s

    def may_evict(self, owner: str, now_s: float) -> bool:
        """Return True if no pod of the owner was evicted for want of room a moment ago."""
        found = self._by_owner.get(owner)
        return found is None or found.evicted_until_s <= now_s

    def selector(self, owner: str) -> tuple[str, ...]:
        """What keeps a pod of the owner from them."""
        found = self._by_owner.get(owner)
        return (f"{HOSTNAME} notin ({','.join(found.nodes)})",) if found is not None and found.nodes else ()

    def expired(self, now_s: float) -> list[str]:
        """Owners for whom all nodes are to be tried again."""
        over = [owner for owner, found in self._by_owner.items() if found.until_s <= now_s]
        for owner in over:
            del self._by_owner[owner]
        return over
