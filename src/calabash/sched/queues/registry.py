"""The registry of gangs: who waits, who runs, and where every request is."""

from __future__ import annotations

from calabash.model.errors import CalabashError, Reason
from calabash.sched.decisions import GangKey, Request, Running
from calabash.sched.queues.gang import Gang

CHANGED_MAX = 16_384


class GangRegistry:
    """Every gang, those that have members waiting (``queued``), and where every id is.

    ``running_in`` are the gangs with running members by queue. ``movable_on`` counts what may be moved, by the node's row.
    ``version`` changes with every change, and ``take_changed`` names the gangs that changed.
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
        gang = self._gang_of.get(request_id)
        if gang is None:
            raise CalabashError(
                f"request {request_id!r} is not known", reason=Reason.NOT_FOUND, hint="it may have ended already"
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
        """Return True if ``take_changed`` would name a gang."""
        return self._changed is None or bool(self._changed)

    @property
    def has_changed_much(self) -> bool:
        """Return True if ``take_changed`` would name many gangs."""
        return self._changed is None or len(self._changed) > CHANGED_MAX // 16

    def take_changed(self) -> set[GangKey] | None:
        """Return the gangs whose running members changed since the last call, ended ones too; None for all."""
        changed, self._changed = self._changed, set()
        return changed

    def add(self, request: Request) -> Gang:
        if request.id in self._gang_of:
            raise CalabashError(
                f"request {request.id} is there already", reason=Reason.CONFLICT, hint="ids are unique while they live"
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
            self._note(gang)
        return gang

    def start(self, running: Running) -> None:
        gang = self._gang_of[running.request.id]
        self.version += 1
        del gang.waiting[running.request.id]
        if not gang.waiting:
            del self.queued[gang.key]
        gang.changed()
        self._come(gang, running)

    def stop(self, request_id: str) -> Running:
        """From running back to waiting."""
        gang = self._gang_of[request_id]
        self.version += 1
        running = gang.running.pop(request_id)
        gang.waiting[request_id] = running.request
        self.queued[gang.key] = gang
        gang.changed()
        self._leave(gang, running)
        return running

    def move(self, running: Running) -> None:
        """Replace a running entry by the same ask elsewhere."""
        gang = self._gang_of[running.request.id]
        self.version += 1
        self._leave(gang, gang.running.pop(running.request.id))
        self._come(gang, running)

    def remove(self, request_id: str) -> Running | Request:
        gang = self.gang_of(request_id)
        self.version += 1
        del self._gang_of[request_id]
        gone: Running | Request
        if request_id in gang.waiting:
            gone = gang.waiting.pop(request_id)
            if not gang.waiting:
                del self.queued[gang.key]
        else:
            gone = gang.running.pop(request_id)
            gang.ended += 1
            self._leave(gang, gone)
        if gang.waiting or gang.running:
            gang.refresh()
            if gang.running:
                self._note(gang)
        else:
            del self.gangs[gang.key]
        return gone

    def _note(self, gang: Gang) -> None:
        """Note that running members of the gang changed. While nobody takes the notes they are bounded."""
        if self._changed is not None:
            self._changed.add(gang.key)
            if len(self._changed) > CHANGED_MAX:
                self._changed = None

    def _come(self, gang: Gang, running: Running) -> None:
        request, row = running.request, running.placement.node
        gang.running[request.id] = running
        gang.units = None
        self._note(gang)
        self.running_in.setdefault(gang.queue, {})[gang.key] = gang
        self.on_node.setdefault(row, {})[request.id] = running
        if request.movable and request.evictable and not request.guarded:
            self.movable_on[row] = self.movable_on.get(row, 0) + 1

    def _leave(self, gang: Gang, running: Running) -> None:
        request, row = running.request, running.placement.node
        gang.units = None
        self._note(gang)
        if not gang.running:
            del self.running_in[gang.queue][gang.key]
        here = self.on_node[row]
        del here[request.id]
        if not here:
            del self.on_node[row]
        if request.movable and request.evictable and not request.guarded:
            self.movable_on[row] -= 1
            if not self.movable_on[row]:
                del self.movable_on[row]
