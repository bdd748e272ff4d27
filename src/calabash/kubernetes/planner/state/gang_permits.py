"""The permit at binding: members of a gang are bound together or not at all.

Theory of operation. kube-scheduler asks for the binding of each pod in a call of its own and waits for the answer; while
it waits, the pod holds its place there. So the calls of a gang are held until as many members as it needs are held or
bound, and then all are let go. Members that were bound and have ended count as bound: they need not come back. A gang
whose members do not all come in time is refused as a whole, so that two gangs that wait for each other's room do not
wait for ever; the order in which plans were made decides who comes first again.

A held member whose node cannot take it now (its kubelet offers no devices while the node's agent is replaced) is not counted:
its binding stays held, and with it those of the gang, until the node can take it or the time is over.
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


class Permits:
    """Who may be bound; pure bookkeeping.

    Args:
        hold_s: how long the first member of a gang waits for the last.
        kept_out: given UIDs of members, returns those whose nodes cannot take them now.
    """

    def __init__(self, hold_s: float, kept_out: Callable[[Collection[str]], Collection[str]] = lambda _: ()) -> None:
        self._hold_s = hold_s
        self._kept_out = kept_out
        self._gangs: dict[GangName, _Gang] = {}

    def join(self, uid: str, gang: GangName, needed: int) -> None:
        """A member has come."""
        found = self._gangs.setdefault(gang, _Gang())
        found.needed = max(found.needed, needed)
        found.members.add(uid)

    def leave(self, uid: str, gang: GangName) -> None:
        """A member is gone for good."""
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

    def bound(self, uid: str, gang: GangName) -> None:
        """A member has its node."""
        found = self._gangs.get(gang)
        if found is not None:
            found.held.pop(uid, None)
            found.bound.add(uid)

    def unbound(self, uid: str, gang: GangName) -> None:
        """Its binding was refused by the API server."""
        found = self._gangs.get(gang)
        if found is not None:
            found.bound.discard(uid)

    def is_begun(self, gang: GangName) -> bool:
        """Whether any member has been bound."""
        found = self._gangs.get(gang)
        return found is not None and bool(found.bound or found.ended)

    def holds(self, uid: str, gang: GangName) -> bool:
        """Return True if the binding of this member waits for others."""
        found = self._gangs.get(gang)
        return found is not None and uid in found.held

    def members(self, gang: GangName) -> set[str]:
        """All that there are."""
        found = self._gangs.get(gang)
        return set(found.members) if found else set()

    def missing(self, gang: GangName) -> tuple[int, int]:
        """(how many are held and could be bound, or are bound; how many are needed)."""
        found = self._gangs.get(gang, _Gang())
        return self._there(found), found.needed

    def arrive(self, uid: str, gang: GangName, now_s: float) -> list[str]:
        """A member asks to be bound; who may be bound now, itself among them or nobody yet."""
        found = self._gangs[gang]
        found.held.setdefault(uid, now_s)
        return self._complete(found)

    def complete(self) -> list[str]:
        """Return the held members of all gangs that may be bound now."""
        return [uid for gang in self._gangs.values() for uid in self._complete(gang)]

    def give_up(self, uid: str, gang: GangName) -> None:
        """Nobody waits for its binding any more."""
        found = self._gangs.get(gang)
        if found is not None:
            found.held.pop(uid, None)

    def expired(self, now_s: float) -> list[str]:
        """Members that waited too long: none of them is bound."""
        refused: list[str] = []
        for gang in self._gangs.values():
            if gang.held and min(gang.held.values()) + self._hold_s <= now_s:
                go = set(self._complete(gang))
                over = [uid for uid in gang.held if uid not in go]
                if over and min(gang.held[uid] for uid in over) + self._hold_s <= now_s:
                    refused.extend(over)
                    for uid in over:
                        del gang.held[uid]
        return refused

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _there(self, gang: _Gang) -> int:
        return gang.ended + len(gang.bound) + len(gang.held) - len(self._kept_out(gang.held))

    def _complete(self, gang: _Gang) -> list[str]:
        if not gang.held or self._there(gang) < gang.needed:
            return []
        kept_out = self._kept_out(gang.held)
        return [uid for uid in gang.held if uid not in kept_out]
