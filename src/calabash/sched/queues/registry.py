"""Registry of all gangs and of their waiting and running requests."""

from __future__ import annotations

from calabash.model.errors import CalabashError, Reason
from calabash.sched.decisions import GangKey, Request, Running
from calabash.sched.queues.gang import Gang

CHANGED_MAX = 16_384
"""Most changed gangs that are noted one by one; beyond it ``take_changed`` reports that all may have changed."""


class GangRegistry:
    """All gangs, indexed by key, request, queue and node.

    Attributes:
        gangs: all gangs. queued: gangs that have waiting members.
        running_in: gangs that have running members, by queue.
        on_node: running requests by the row of their node and by ID.
        movable_on: number of running requests that may be moved, by the row of their node; rows without any are left out.
        version: increased with every change.
    """

    def __init__(self) -> None:
        self.gangs: dict[GangKey, Gang] = {}
        self.queued: dict[GangKey, Gang] = {}
        self.running_in: dict[str, dict[GangKey, Gang]] = {}
        self._gang_of: dict[str, Gang] = {}
        self.on_node: dict[int, dict[str, Running]] = {}
        self.movable_on: dict[int, int] = {}
        self.version = 0
        self._changed: set[GangKey] | None = None

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._gang_of

    def gang_of(self, request_id: str) -> Gang:
        """Return the gang of a request. Raises NOT_FOUND if there is no such request."""
        gang = self._gang_of.get(request_id)
        if gang is None:
            raise CalabashError(
                f"request {request_id!r} does not exist", reason=Reason.NOT_FOUND, hint="it may have ended already"
            )
        return gang

    def request(self, request_id: str) -> Request:
        gang = self.gang_of(request_id)
        return gang.waiting[request_id] if request_id in gang.waiting else gang.running[request_id].request

    def running(self, request_id: str) -> Running | None:
        gang = self._gang_of.get(request_id)
        return gang.running.get(request_id) if gang else None

    @property
    def has_changed(self) -> bool:
        """Return True if running members of a gang have changed since the last ``take_changed``."""
        return self._changed is None or bool(self._changed)

    @property
    def has_changed_much(self) -> bool:
        """Return True if so many gangs have changed that ``take_changed`` should be called soon."""
        return self._changed is None or len(self._changed) > CHANGED_MAX // 16

    def take_changed(self) -> set[GangKey] | None:
        """Return the gangs whose running members changed since the last call, ended gangs included.

        None means that all gangs may have changed.
        """
        changed, self._changed = self._changed, set()
        return changed

    def add(self, request: Request) -> Gang:
        """Add a waiting request to its gang; create the gang if it is new. Raises CONFLICT if the ID is in use."""
        if request.id in self._gang_of:
            raise CalabashError(
                f"request {request.id} exists already",
                reason=Reason.CONFLICT,
                hint="use another ID, or remove the request first",
            )
        key = request.gang_key
        gang = self.gangs.get(key)
        if gang is None:
            gang = self.gangs[key] = Gang(key=key, queue=request.queue, owner=request.behalf)
        self.version += 1
        gang.waiting[request.id] = request
        self.queued[gang.key] = gang
        self._gang_of[request.id] = gang
        gang.refresh()
        if gang.running:
            self._mark_changed(gang)
        return gang

    def start(self, running: Running) -> None:
        """Change a waiting request to running."""
        gang = self._gang_of[running.request.id]
        self.version += 1
        del gang.waiting[running.request.id]
        if not gang.waiting:
            del self.queued[gang.key]
        gang.changed()
        self._add_running(gang, running)

    def stop(self, request_id: str) -> Running:
        """Change a running request back to waiting, after an eviction."""
        gang = self._gang_of[request_id]
        self.version += 1
        running = gang.running.pop(request_id)
        gang.waiting[request_id] = running.request
        self.queued[gang.key] = gang
        gang.changed()
        self._running_removed(gang, running)
        return running

    def move(self, running: Running) -> None:
        """Replace the placement of a running request."""
        gang = self._gang_of[running.request.id]
        self.version += 1
        self._running_removed(gang, gang.running.pop(running.request.id))
        self._add_running(gang, running)

    def remove(self, request_id: str) -> Running | Request:
        """Remove a request, waiting or running, and its gang if that was the last member."""
        gang = self.gang_of(request_id)
        self.version += 1
        del self._gang_of[request_id]
        removed: Running | Request
        if request_id in gang.waiting:
            removed = gang.waiting.pop(request_id)
            if not gang.waiting:
                del self.queued[gang.key]
        else:
            removed = gang.running.pop(request_id)
            gang.ended += 1
            self._running_removed(gang, removed)
        if gang.waiting or gang.running:
            gang.refresh()
            if gang.running:
                self._mark_changed(gang)
        else:
            del self.gangs[gang.key]
        return removed

    def _mark_changed(self, gang: Gang) -> None:
        """Note that running members of the gang changed.

        When more than CHANGED_MAX gangs have changed, note instead that all may have changed.
        """
        if self._changed is not None:
            self._changed.add(gang.key)
            if len(self._changed) > CHANGED_MAX:
                self._changed = None

    def _add_running(self, gang: Gang, running: Running) -> None:
        request, row = running.request, running.placement.node
        gang.running[request.id] = running
        gang.units = None
        self._mark_changed(gang)
        self.running_in.setdefault(gang.queue, {})[gang.key] = gang
        self.on_node.setdefault(row, {})[request.id] = running
        if request.movable and request.evictable and not request.guarded:
            self.movable_on[row] = self.movable_on.get(row, 0) + 1

    def _running_removed(self, gang: Gang, running: Running) -> None:
        """Remove a request that no longer runs from the indices by queue and node."""
        request, row = running.request, running.placement.node
        gang.units = None
        self._mark_changed(gang)
        if not gang.running:
            del self.running_in[gang.queue][gang.key]
        on_same_node = self.on_node[row]
        del on_same_node[request.id]
        if not on_same_node:
            del self.on_node[row]
        if request.movable and request.evictable and not request.guarded:
            self.movable_on[row] -= 1
            if not self.movable_on[row]:
                del self.movable_on[row]
