"""Permits for bindings of gangs: members of a gang are bound together or not at all.

Theory of operation. kube-scheduler requests the binding of each pod in a separate call and waits for the answer.
Meanwhile it reserves CPU and memory for the pod on the node. The calls of a gang's members are held until enough
members are held or bound, and are then answered together. Members that were bound and have ended still count as bound,
because a gang need not start them again. If too few members arrive within a time limit, all held calls of the gang are
refused. Otherwise two gangs could wait for each other without end. After the refusal, the order of their plans decides
which gang is bound first.

A node may be unable to start pods for a while, because its kubelet offers no device IDs while the node's agent is
replaced. A held member that is planned on such a node is not counted, so its gang stays held until the node is ready
again or the time limit is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

GangName = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class _Gang:
    needed: int = 1
    members: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    ended: int = 0
    held: dict[str, float] = field(default_factory=dict)


class GangPermits:
    """Members of gangs: which are bound, and whose bindings are held until the gang is complete. No I/O.

    Args:
        hold_s: seconds for which the first held member of a gang waits for the last one.
        on_unready_nodes: given UIDs of pods, returns those whose planned nodes cannot start them now.
    """

    def __init__(
        self, hold_s: float, on_unready_nodes: Callable[[Collection[str]], Collection[str]] = lambda _: ()
    ) -> None:
        self._hold_s = hold_s
        self._on_unready_nodes = on_unready_nodes
        self._gangs: dict[GangName, _Gang] = {}

    def add_member(self, uid: str, gang: GangName, needed: int) -> None:
        """Add a member. ``needed``: number of members that must start together; the greatest given value counts."""
        found = self._gangs.setdefault(gang, _Gang())
        found.needed = max(found.needed, needed)
        found.members.add(uid)

    def remove_member(self, uid: str, gang: GangName) -> None:
        """Remove a member that was deleted or has ended. If it was bound, it still counts as bound."""
        found = self._gangs.get(gang)
        if found is None:
            return
        found.members.discard(uid)
        found.held.pop(uid, None)
        if uid in found.bound:
            found.bound.discard(uid)
            found.ended += 1
        if not found.members:
            del self._gangs[gang]

    def set_bound(self, uid: str, gang: GangName) -> None:
        """Mark a member as bound."""
        found = self._gangs.get(gang)
        if found is not None:
            found.held.pop(uid, None)
            found.bound.add(uid)

    def set_unbound(self, uid: str, gang: GangName) -> None:
        """Mark a member as not bound, because the API server refused its binding."""
        found = self._gangs.get(gang)
        if found is not None:
            found.bound.discard(uid)

    def has_bound_member(self, gang: GangName) -> bool:
        """Return True if a member is or was bound."""
        found = self._gangs.get(gang)
        return found is not None and bool(found.bound or found.ended)

    def holds(self, uid: str, gang: GangName) -> bool:
        """Return True if the binding of this member is held until its gang is complete."""
        found = self._gangs.get(gang)
        return found is not None and uid in found.held

    def members(self, gang: GangName) -> set[str]:
        """Return the UIDs of all members."""
        found = self._gangs.get(gang)
        return set(found.members) if found else set()

    def progress(self, gang: GangName) -> tuple[int, int]:
        """Return the number of members that are bound, or held on a node that is ready, and the number needed."""
        found = self._gangs.get(gang, _Gang())
        return self._count(found), found.needed

    def request_binding(self, uid: str, gang: GangName, now_s: float) -> list[str]:
        """Hold a member's binding, and return the held members that may be bound now.

        No member may be bound while the gang is incomplete.
        """
        found = self._gangs[gang]
        found.held.setdefault(uid, now_s)
        return self._ready(found)

    def ready_members(self) -> list[str]:
        """Return the held members of all gangs that may be bound now."""
        return [uid for gang in self._gangs.values() for uid in self._ready(gang)]

    def cancel_hold(self, uid: str, gang: GangName) -> None:
        """Stop holding a member's binding."""
        found = self._gangs.get(gang)
        if found is not None:
            found.held.pop(uid, None)

    def take_expired(self, now_s: float) -> list[str]:
        """Stop holding the members whose gang was not complete within ``hold_s``, and return their UIDs."""
        refused: list[str] = []
        for gang in self._gangs.values():
            if gang.held and min(gang.held.values()) + self._hold_s <= now_s:
                go = set(self._ready(gang))
                over = [uid for uid in gang.held if uid not in go]
                if over and min(gang.held[uid] for uid in over) + self._hold_s <= now_s:
                    refused.extend(over)
                    for uid in over:
                        del gang.held[uid]
        return refused

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _count(self, gang: _Gang) -> int:
        return gang.ended + len(gang.bound) + len(gang.held) - len(self._on_unready_nodes(gang.held))

    def _ready(self, gang: _Gang) -> list[str]:
        if not gang.held or self._count(gang) < gang.needed:
            return []
        unready = self._on_unready_nodes(gang.held)
        return [uid for uid in gang.held if uid not in unready]
