"""Members of gangs that request no devices, and the descriptions of members.

Theory of operation. Such a member has no request in the scheduler, but it starts with the others: its gate is removed
when enough members with devices have a plan, and its binding is held until the whole gang can be bound, as theirs are
(``gang_permits``). Without devices for the others, it is not started. If a member of the gang was bound already, the pod
replaces a member that has ended, and does not wait.
"""

from __future__ import annotations

from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.planner.state.gang_permits import GangName
from calabash.kubernetes.planner.state.pod_entry import PodEntry
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.kubernetes.pod_request import GangSource

_PLANNED = frozenset((Stage.RELEASING, Stage.RELEASED, Stage.BINDING, Stage.BOUND))


def stated_gang(facts: PodFacts) -> tuple[str, GangSource, int]:
    """Return the gang of a pod, the source of its size, and the size that the pod itself states."""
    if facts.request is not None:
        first = facts.request.containers[0].request
        return first.gang, facts.request.gang_source, first.gang_size
    if facts.member is not None:
        return facts.member.gang, facts.member.source, facts.member.size
    return "", GangSource.NONE, 1


class WaitingRiders:
    """Members without devices (stage ASIDE) that wait for the plans of the others."""

    def __init__(self, store: PodStore) -> None:
        self._store = store
        self._waiting: dict[GangName, dict[str, None]] = {}

    def may_start(self, entry: PodEntry) -> bool:
        """Return True if the pod may start. If not, it is returned by ``take_ready`` once it may."""
        if not entry.facts.gated:
            return True
        if entry.gang is None:  # its group is not known
            return False
        planned, needed = self._planned(entry.gang)
        if planned >= needed or self._store.permits.has_bound_member(entry.gang):
            return True
        self._waiting.setdefault(entry.gang, {})[entry.facts.uid] = None
        return False

    def waiting_text(self, entry: PodEntry) -> str:
        """Return why the pod waits."""
        assert entry.gang is not None
        planned, needed = self._planned(entry.gang)
        return (
            f"gang {entry.gang[1]} starts with {needed} members, {planned} of them have a plan or request no devices"
            f"{member_note(self._store, entry)}"
        )

    def take_ready(self) -> list[PodEntry]:
        """Return and forget the waiting pods that may start, and those whose explanation may have changed."""
        found: list[PodEntry] = []
        for gang, uids in list(self._waiting.items()):
            del self._waiting[gang]
            for uid in uids:
                entry = self._store.entries.get(uid)
                if entry is not None and entry.gang == gang and entry.stage is Stage.ASIDE:
                    found.append(entry)
        return found

    def _planned(self, gang: GangName) -> tuple[int, int]:
        """Return the number of members that have a plan or need none, and the number that start together."""
        permits, entries = self._store.permits, self._store.entries
        members = [entries[uid] for uid in permits.members(gang) if uid in entries]
        planned = sum(one.facts.rides or one.stage in _PLANNED for one in members)
        return planned, permits.progress(gang)[1]


def member_note(store: PodStore, entry: PodEntry) -> str:
    """Return a sentence with the owner and the role of a member and the number of existing members; "" for other pods."""
    member = entry.facts.member
    if member is None or not member.described or entry.gang is None:
        return ""
    there, needed = len(store.permits.members(entry.gang)), store.permits.progress(entry.gang)[1]
    missing = f", {needed - there} are missing" if there < needed else ""
    return f". The pod is a member of {member.described}: {there} of {needed} members exist{missing}"
