"""The book of networks of a pool: kept in its database, judged as one value, changed by those who may.

Theory of operation. The state in memory is what the database has. A change is judged by the state, written in one transaction
that moves the revision from that state's to the next, and only then is the new state the one in memory: whenever the process
ends, all of a change is there or nothing. Where somebody else has moved the revision, the state is read anew and the change
judged again. Who waits for a later revision is called after each change.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from calabash.adapters.store.networks import NetworkTables, StoredNetworkObject
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, NetworkObject, Port, Vpc, kind_of
from calabash.model.tenancy import Principal
from calabash.net.store.networks import Networks
from calabash.platform.networks.changes import Key, NetworkDifference, NetworkState, difference, merged, read_state
from calabash.platform.networks.rights import NetworkRights

CHANGES_KEPT_MAX = 4096
Judge = Callable[[NetworkState], Networks]


class NetworkBook:
    """Safe for threads. Methods that somebody asks for raise CalabashError where that one may not or it cannot be."""

    def __init__(self, stored: NetworkTables, rights: NetworkRights) -> None:
        self._stored = stored
        self.rights = rights
        self._lock = threading.Lock()
        self._state = read_state(*stored.load())
        self._changes: deque[tuple[int, frozenset[Key]]] = deque(maxlen=CHANGES_KEPT_MAX)
        self._waiting: dict[object, Callable[[], None]] = {}
        self.ending = False

    def state(self) -> NetworkState:
        """All there is now."""
        return self._state

    # -- what somebody asks for --------------------------------------------------------------------------------

    def put(
        self, who: Principal, wanted: NetworkObject, *, new: bool = False, generation: int = 0
    ) -> StoredNetworkObject:
        """Create it or change it; the object with all that was allocated.

        Args:
            new: raises CONFLICT when it is there and not the same.
            generation: raises CONFLICT unless it has that one; 0: whatever it has.
        """
        key = (str(kind_of(wanted)), wanted.name)

        def judged(state: NetworkState) -> Networks:
            self.rights.require_put(who, state.kept, wanted)
            known = state.kept.get(key)
            if generation and (known is None or known.generation != generation):
                raise CalabashError(
                    f"{key[0]} {wanted.name} has generation {known.generation if known else 0}, not {generation}",
                    reason=Reason.CONFLICT,
                    hint="look at it again",
                )
            wanted_here = self.owned(who, state, wanted)
            networks, _ = state.networks.put(wanted_here, platform=self.rights.platform(who))
            if new and known is not None and networks is not state.networks:
                raise CalabashError(
                    f"{key[0]} {wanted.name} is there already, and not the same",
                    reason=Reason.CONFLICT,
                    hint=f"see `calabash {key[0]} show {wanted.name}`; `set` and `calabash net apply` change it",
                )
            return networks

        return self.change(who, judged, kind=key[0]).kept[key]

    def remove(self, who: Principal, kind: NetworkKind, name: str, *, cascade: bool = False) -> StoredNetworkObject:
        """Remove it, ``cascade`` with what is in it; as it was."""
        gone: list[StoredNetworkObject] = []

        def judged(state: NetworkState) -> Networks:
            gone[:] = [self.rights.found(who, state.kept, kind, name)]
            self.rights.require_change(who, state.kept, kind, name)
            return state.networks.remove(kind, name, cascade=cascade, platform=self.rights.platform(who))

        self.change(who, judged, kind=kind)
        return gone[0]

    def usable_port(self, who: Principal, name: str) -> Port:
        """The port, for a program of that principal's to join. Raises NOT_FOUND, NOT_PERMITTED."""
        state = self._state
        self.rights.found(who, state.kept, NetworkKind.PORT, name)
        self.rights.require_change(who, state.kept, NetworkKind.PORT, name)
        port = state.networks.find(Port, name)
        assert port is not None
        return port

    def owned(self, who: Principal, state: NetworkState, wanted: NetworkObject) -> NetworkObject:
        """A VPC with whom it belongs to: as it was, or for a new one as its maker is."""
        if not isinstance(wanted, Vpc):
            return wanted
        known = state.kept.get((NetworkKind.VPC, wanted.name))
        if known is not None and not wanted.tenant:
            return replace(wanted, tenant=known.tenant)
        return wanted if known is not None else replace(wanted, tenant=self.rights.tenant_for(who, wanted.tenant))

    def change(self, who: Principal, judge: Judge, *, applied: Iterable[Key] = (), kind: str = "") -> NetworkState:
        """Make the networks what ``judge`` makes of the state, and write that; the state then.

        Args:
            applied: what a file says.
            kind: what it is about, for hints; "" for several.
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
            raise self.rights.told(who, self._state.kept, error, kind) from error

    @contextmanager
    def held(self) -> Iterator[NetworkState]:
        """The state, which does not change while this lasts."""
        with self._lock:
            yield self._state

    def require_none_of(self, tenant: str) -> None:
        """Raises CONFLICT where a tenant has networks."""
        for row in self._state.kept.values():
            if row.kind == NetworkKind.VPC and row.tenant == tenant:
                raise CalabashError(
                    f"tenant {tenant} has networks, VPC {row.name} among them",
                    reason=Reason.CONFLICT,
                    hint=f"calabash vpc delete {row.name} --all",
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
        self._tell()
        return self._state

    def _reload(self) -> bool:
        """Whether somebody else has changed the networks where they are kept; then that is the state."""
        if self._stored.revision() == self._state.revision:
            return False
        self._state = read_state(*self._stored.load())
        self._changes.clear()
        self._tell()
        return True

    # -- what the program that carries them out asks for -------------------------------------------------------

    def since(self, revision: int) -> tuple[NetworkState, frozenset[Key] | None]:
        """The state, and what has changed after that revision; None: that is not known any more."""
        with self._lock:
            state, changes = self._state, tuple(self._changes)
        if revision == state.revision:
            return state, frozenset()
        if revision > state.revision or not changes or changes[0][0] > revision + 1:
            return state, None
        return state, frozenset().union(*(keys for number, keys in changes if number > revision))

    def report(self, statuses: Mapping[Key, Mapping[str, Any]], partial: Collection[Key] = ()) -> int:
        """Keep what is known of objects; how many of them are there. It moves no revision.

        Of each object's conditions those of the kinds that are told are replaced; others, which somebody else tells, stay.

        Args:
            partial: those of which only conditions are told, and not what has been carried out, and where.
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
        """Nobody waits for a later revision any more."""
        with self._lock:
            self.ending = True
            waiting = list(self._waiting.values())
        for told in waiting:
            told()

    @contextmanager
    def called(self, told: Callable[[], None]) -> Iterator[None]:
        """While this lasts, ``told`` is called after each change, from whichever thread; it must not wait."""
        mark = object()
        with self._lock:
            self._waiting[mark] = told
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[mark]

    def _tell(self) -> None:
        for told in tuple(self._waiting.values()):
            told()


def _kept(before: Mapping[Key, StoredNetworkObject], found: NetworkDifference) -> Mapping[Key, StoredNetworkObject]:
    after = dict(before)
    for key in found.removed:
        del after[key]
    for item in found.puts:
        after[item.kind, item.name] = item
    return after
