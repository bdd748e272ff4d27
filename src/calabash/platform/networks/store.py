"""Store of a pool's tenant networks: in memory and in the database, changed in transactions.

Theory of operation. The state in memory is that of the database. A change is validated against the state and written in one
transaction that raises the revision by one; only then does it replace the state in memory. So a change is stored completely or
not at all. If another process has changed the revision, the state is loaded again and the change validated again. Waiting
clients are notified after each change.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from calabash.adapters.store.networks import NetworkTables, StoredNetworkObject
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, NetworkObject, Port, Vpc, kind_of
from calabash.model.tenancy import Principal
from calabash.net.store.networks import Networks
from calabash.platform.networks.changes import Key, NetworkDifference, NetworkState, difference, merged, read_state
from calabash.platform.networks.rights import NetworkRights

CHANGES_KEPT_MAX = 4096
Judge = Callable[[NetworkState], Networks]


class NetworkStore:
    """Networks of all tenants. Safe for threads.

    Methods with a principal raise CalabashError if it lacks permission or the change is invalid.
    """

    def __init__(self, stored: NetworkTables, rights: NetworkRights) -> None:
        self._stored = stored
        self.rights = rights
        self._lock = threading.Lock()
        self._state = read_state(*stored.load())
        self._changes: deque[tuple[int, frozenset[Key]]] = deque(maxlen=CHANGES_KEPT_MAX)
        self._waiting: dict[object, Callable[[], None]] = {}
        self.ending = False

    def state(self) -> NetworkState:
        """Return the present state."""
        return self._state

    # -- changes of users ----------------------------------------------------------------------------------

    def put(
        self, who: Principal, wanted: NetworkObject, *, new: bool = False, generation: int = 0
    ) -> StoredNetworkObject:
        """Create or change an object; return it with the addresses that were allocated.

        Args:
            who: the requesting principal.
            wanted: the object.
            new: True to raise CONFLICT if the object exists and differs.
            generation: generation that the stored object must have, otherwise CONFLICT is raised; 0 for any.
        """
        key = (str(kind_of(wanted)), wanted.name)

        def judged(state: NetworkState) -> Networks:
            self.rights.require_put(who, state.kept, wanted)
            known = state.kept.get(key)
            if generation and (known is None or known.generation != generation):
                raise CalabashError(
                    f"{key[0]} {wanted.name} has generation {known.generation if known else 0}, not {generation}",
                    reason=Reason.CONFLICT,
                    hint=f"read it again: calabash net {key[0]} show {wanted.name}",
                )
            wanted_here = self.owned(who, state, wanted)
            networks, _ = state.networks.put(wanted_here, platform=self.rights.platform(who))
            if new and known is not None and networks is not state.networks:
                raise CalabashError(
                    f"{key[0]} {wanted.name} exists already, and differs",
                    reason=Reason.CONFLICT,
                    hint=f"see `calabash net {key[0]} show {wanted.name}`; `set` and `calabash net apply` change it",
                )
            return networks

        return self.change(who, judged, kind=key[0]).kept[key]

    def remove(self, who: Principal, kind: NetworkKind, name: str, *, cascade: bool = False) -> StoredNetworkObject:
        """Remove an object and return its last state.

        Args:
            who: the requesting principal.
            kind: kind of the object.
            name: name of the object.
            cascade: True to remove also the objects that it contains; False to refuse if it contains any.
        """
        gone: list[StoredNetworkObject] = []

        def judged(state: NetworkState) -> Networks:
            gone[:] = [self.rights.found(who, state.kept, kind, name)]
            self.rights.require_change(who, state.kept, kind, name)
            return state.networks.remove(kind, name, cascade=cascade, platform=self.rights.platform(who))

        self.change(who, judged, kind=kind)
        return gone[0]

    def usable_port(self, who: Principal, name: str) -> Port:
        """Return a port that a program of the principal may use. Raises NOT_FOUND, NOT_PERMITTED."""
        state = self._state
        self.rights.found(who, state.kept, NetworkKind.PORT, name)
        self.rights.require_change(who, state.kept, NetworkKind.PORT, name)
        port = state.networks.find(Port, name)
        assert port is not None
        return port

    def owned(self, who: Principal, state: NetworkState, wanted: NetworkObject) -> NetworkObject:
        """Return the object; for a VPC, with its tenant filled in.

        If the request names no tenant, an existing VPC keeps its tenant; a new VPC gets the tenant of the principal.
        """
        if not isinstance(wanted, Vpc):
            return wanted
        known = state.kept.get((NetworkKind.VPC, wanted.name))
        if known is not None and wanted.tenant:
            return wanted
        tenant = known.tenant if known is not None else self.rights.tenant_for(who, wanted.tenant)
        return msgspec.structs.replace(wanted, tenant=tenant)

    def change(self, who: Principal, judge: Judge, *, applied: Iterable[Key] = (), kind: str = "") -> NetworkState:
        """Compute new networks from the state with ``judge``, store them, and return the new state.

        If that fails because another process has changed the networks, loads the state and tries once more.

        Args:
            judge: returns the new networks; raises CalabashError if the change is invalid.
            applied: keys of objects that an applied file declares.
            kind: kind of the objects, for hints; "" for several.
        """
        try:
            with self._lock:
                try:
                    return self._write(judge(self._state), frozenset(applied))
                except CalabashError:
                    if not self._reload():
                        raise
                return self._write(judge(self._state), frozenset(applied))
        except CalabashError as error:
            raise self.rights.redacted_error(who, self._state.kept, error, kind) from error

    @contextmanager
    def held(self) -> Iterator[NetworkState]:
        """Hold the lock, so that the yielded state does not change."""
        with self._lock:
            yield self._state

    def require_none_of(self, tenant: str) -> None:
        """Raise CONFLICT if a tenant has networks."""
        for row in self._state.kept.values():
            if row.kind == NetworkKind.VPC and row.tenant == tenant:
                raise CalabashError(
                    f"tenant {tenant} has networks, VPC {row.name} among them",
                    reason=Reason.CONFLICT,
                    hint=f"calabash net vpc delete {row.name} --all",
                )

    def _write(self, networks: Networks, applied: frozenset[Key]) -> NetworkState:
        before = self._state
        found = difference(before, networks, applied)
        if not found.puts and not found.removed:
            return before
        revision = before.revision + 1
        self._stored.change(found.puts, found.removed, before=before.revision, revision=revision)
        self._state = NetworkState(
            networks=replace(networks, revision=revision), kept=_kept(before.kept, found), revision=revision
        )
        self._changes.append((revision, frozenset(found.keys())))
        self._notify()
        return self._state

    def _reload(self) -> bool:
        """Load the state if another process has changed the database; return True if it was loaded."""
        if self._stored.revision() == self._state.revision:
            return False
        self._state = read_state(*self._stored.load())
        self._changes.clear()
        self._notify()
        return True

    # -- controllers -------------------------------------------------------------------------------------------

    def since(self, revision: int) -> tuple[NetworkState, frozenset[Key] | None]:
        """Return the state and the keys of the objects that have changed after a revision.

        The keys are None if the changes after that revision are not in memory any more; the caller must read all
        objects.
        """
        with self._lock:
            state, changes = self._state, tuple(self._changes)
        if revision == state.revision:
            return state, frozenset()
        if revision > state.revision or not changes or changes[0][0] > revision + 1:
            return state, None
        return state, frozenset().union(*(keys for number, keys in changes if number > revision))

    def report(self, statuses: Mapping[Key, Mapping[str, Any]], partial: Collection[Key] = ()) -> int:
        """Store reported statuses; return the number of objects that exist. Does not change the revision.

        Replaces the reported kinds of conditions of each object; conditions that another program reports are unchanged.

        Args:
            partial: keys of objects for which only conditions are reported, without generation and host.
        """
        with self._lock:
            before = self._state
            there = {
                key: merged(before.kept[key].status, status, partial=key in partial)
                for key, status in statuses.items()
                if key in before.kept
            }
            fresh = {key: status for key, status in there.items() if before.kept[key].status != status}
            if fresh:
                self._stored.report(fresh)
                rows = {key: replace(before.kept[key], status=status) for key, status in fresh.items()}
                self._state = replace(before, kept={**before.kept, **rows})
        return len(there)

    def end(self) -> None:
        """Wake up all clients that wait for a change, so that they do not delay the shutdown of the server."""
        with self._lock:
            self.ending = True
            waiting = list(self._waiting.values())
        for notify in waiting:
            notify()

    @contextmanager
    def notifying(self, notify: Callable[[], None]) -> Iterator[None]:
        """Call ``notify`` after each change while the context lasts. Any thread may call it, and it must not block."""
        mark = object()
        with self._lock:
            self._waiting[mark] = notify
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[mark]

    def _notify(self) -> None:
        for notify in tuple(self._waiting.values()):
            notify()


def _kept(before: Mapping[Key, StoredNetworkObject], found: NetworkDifference) -> Mapping[Key, StoredNetworkObject]:
    after = dict(before)
    for key in found.removed:
        del after[key]
    for item in found.puts:
        after[item.kind, item.name] = item
    return after
