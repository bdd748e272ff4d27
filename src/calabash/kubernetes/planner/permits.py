"""The permit at binding: members of a gang are bound together or not at all.

Theory of operation. kube-scheduler asks for the binding of each pod in a call of its own and waits for the answer; while
it waits, the pod holds its place there. So the calls of a gang are held until as many members as it needs are held or
bound, and then all are let go. Members that were bound and have ended count as bound: they need not come back. A gang
whose members do not all come in time is refused as a whole, so that two gangs that wait for each other's room do not
wait for ever; the order in which plans were made decides who comes first again.
"""

from __future__ import annotations

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

    @property
    def there(self) -> int:
        return self.ended + len(self.bound) + len(self.held)


class Permits:
    """Who may be bound; pure bookkeeping.

    Args:
        hold_s: how long the first member of a gang waits for the last.
    """

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
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
        """(how many are held or bound, how many are needed)."""
        found = self._gangs.get(gang, _Gang())
        return found.there, found.needed

    def arrive(self, uid: str, gang: GangName, now_s: float) -> list[str]:
        """A member asks to be bound; who may be bound now, itself among them or nobody yet."""
        found = self._gangs[gang]
        found.held.setdefault(uid, now_s)
        if found.there < found.needed:
            return []
        return list(found.held)

    def give_up(self, uid: str, gang: GangName) -> None:
        """Nobody waits for its binding any more."""
        found = self._gangs.get(gang)
        if found is not None:
            found.held.pop(uid, None)

    def expired(self, now_s: float) -> list[str]:
        """Members of gangs that waited too long: none of them is bound."""
        refused: list[str] = []
        for gang in self._gangs.values():
            waited = gang.held and gang.there < gang.needed
            if waited and min(gang.held.values()) + self._hold_s <= now_s:
                refused.extend(gang.held)
                gang.held.clear()
        return refused
