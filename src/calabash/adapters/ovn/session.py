"""Session with an OVSDB database: keeps a copy of its tables, and writes transactions to it through its leading server.

One thread owns the connection. It requests the schema, the state of the server, the lock and the tables. Then it
applies the server's updates to the copy, and sends the transactions that other threads request. Any failure ends the
connection. The next server is tried after at most half a second, so after the failure of a leader the session waits
hardly longer than the election of the new one takes.

If the connection is lost during a transaction, its outcome is unknown. The transaction then raises an error that says
so, and the caller must read the database again. The updates of a transaction arrive before its answer, so a writer that
has got the answer finds its own changes in the copy.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from calabash.adapters.ovn.dialogue import Dialogue, NotHereError
from calabash.adapters.ovn.pending import Pending, results_of
from calabash.adapters.ovn.replica import Replica, RowEvent
from calabash.adapters.ovn.wire import Credentials, LostError, Wire, checked_remotes
from calabash.model.errors import CalabashError, Reason

_LOCK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PAUSE_S, _PAUSE_S_MAX = 0.1, 0.5  # before the next attempt to connect
_STAND_S = 3.0  # a connection that lasted this long did not fail at once

log = structlog.get_logger(__name__)


class _Rotation:
    """Order and pauses in which the servers of a database are tried."""

    def __init__(self, remotes: Sequence[str]) -> None:
        self._remotes = tuple(remotes)
        self._tried = 0
        self._pause_s = _PAUSE_S
        self._begun_s = 0.0

    def next(self) -> str:
        remote = self._remotes[self._tried % len(self._remotes)]
        self._tried += 1
        self._begun_s = time.monotonic()
        return remote

    def pause_s(self, *, other_may: bool) -> float:
        """Return the pause before the next attempt, in seconds.

        Args:
            other_may: True if the last server answered that it cannot serve the database, but another server may.
        """
        if time.monotonic() - self._begun_s > _STAND_S:
            self._pause_s = _PAUSE_S
            return 0.0
        if other_may and self._tried % len(self._remotes):
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(_PAUSE_S_MAX, 2 * self._pause_s)
        return pause_s


class Session:
    """Session with a database, with a local copy of its tables. Safe for threads.

    Args:
        remotes: addresses of the database's servers, in the form that :func:`checked_remotes` parses.
        database: name of the database, for example ``OVN_Northbound``.
        tables: columns to copy, by table; columns that this version of the database does not have are left out.
        lock: name of the lock that the session must hold to write; "" for none. The name must not have a hyphen: OVSDB
            accepts such a name, but never grants the lock.
        leader_only: True to use only the leader of a cluster.
        credentials: TLS files, for ``ssl:`` servers.
        told: called in the session's thread with the copy and the changes of rows. It is called without changes when
            the copy was read completely, at first and after each reconnection. Must not block.
    """

    def __init__(
        self,
        remotes: str,
        database: str,
        tables: Mapping[str, Sequence[str]],
        *,
        lock: str = "",
        leader_only: bool = True,
        credentials: Credentials | None = None,
        told: Callable[[Replica, Sequence[RowEvent]], None] = lambda *_: None,
    ) -> None:
        if lock and not _LOCK_NAME.fullmatch(lock):
            raise CalabashError(
                f"{lock!r} is not a valid name of an OVSDB lock", hint="use letters, digits and underscores"
            )
        self.database, self.lock = database, lock
        self._remotes = checked_remotes(remotes)
        self._wanted = {table: tuple(columns) for table, columns in tables.items()}
        self._leader_only, self._told = leader_only, told
        self._tls = credentials.context() if credentials is not None else None
        self._replica = Replica()
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[Pending] = deque()
        self._last = ""
        self._dialogue: Dialogue | None = None
        self._ready = self._has_lock = self._closed = False
        self._failure = "no server was reached yet"
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=f"ovsdb {database}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{self.database} at {', '.join(self._remotes)}"

    @property
    def ready(self) -> bool:
        """True if the copy is complete and receives updates."""
        return self._ready

    @property
    def has_lock(self) -> bool:
        """True if this session may write: it has the lock, or needs none."""
        return self._ready and (self._has_lock or not self.lock)

    @property
    def failure(self) -> str:
        """Reason why the session has no connection; "" while it has one."""
        return "" if self._ready else self._failure

    def close(self) -> None:
        """Close the connection, which releases the lock."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        self._notify()
        self._thread.join()
        with self._changed:
            wake, self._wake = self._wake, -1
        os.close(wake)
        os.close(self._woken)

    @contextmanager
    def reading(self) -> Iterator[Replica]:
        """Context that yields the local copy of the tables, which does not change while the context lasts."""
        with self._changed:
            yield self._replica

    def wait_for(self, holds: Callable[[Replica], bool], timeout_s: float) -> bool:
        """Wait until a predicate holds for a complete copy; it is checked after every update.

        Return False after ``timeout_s``.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or (self._ready and holds(self._replica)), timeout_s)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait for the database. Raises CalabashError(UNREACHABLE) if it is not available in time."""
        if not self.wait_for(lambda _: True, timeout_s) or self._closed:
            raise _unreachable(self, f"does not answer within {timeout_s:g}s: {self._failure}")

    def wait_lock(self, timeout_s: float) -> bool:
        """Wait for the lock; return False if it was not granted in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or self.has_lock, timeout_s) and self.has_lock

    def transact(self, operations: Sequence[Mapping[str, Any]], *, timeout_s: float = 10.0) -> list[Any]:
        """Run operations in one transaction, all or none of them; return their results.

        Raises CalabashError: CONFLICT (refused, or another session has the lock), UNREACHABLE (not available, or the
        connection was lost), TIMEOUT (not answered). After the latter two the outcome is unknown.
        """
        guard = [{"op": "assert", "lock": self.lock}] if self.lock else []
        pending = Pending([*guard, *operations])
        with self._changed:
            if self._closed:
                raise _unreachable(self, "is closed")
            self._queue.append(pending)
        self._notify()
        if not pending.done.wait(timeout_s):
            with self._changed:
                if waits := pending in self._queue:
                    self._queue.remove(pending)
            if waits:
                raise _unreachable(self, f"was not there within {timeout_s:g}s: {self._failure}")
            raise CalabashError(
                f"{self.database} did not answer a transaction within {timeout_s:g}s; its outcome is unknown",
                reason=Reason.TIMEOUT,
            )
        return results_of(pending, self.database)[len(guard) :]

    def _notify(self) -> None:
        with self._changed:
            if self._wake >= 0:
                with suppress(BlockingIOError):  # it is awake
                    os.write(self._wake, b"x")

    def _run(self) -> None:
        rotation = _Rotation(self._remotes)
        while not self._closed:
            remote = rotation.next()
            try:
                self._serve(remote)
            except (NotHereError, OSError, LostError, CalabashError) as error:
                self._failure = f"{remote}: {error}"
                pause_s = rotation.pause_s(other_may=isinstance(error, NotHereError))
            except Exception as error:  # an unexpected message: leave this server
                self._failure = f"{remote}: {error!r}"
                pause_s = _PAUSE_S_MAX
                log.exception("cannot handle a message of a database server", database=self.database, remote=remote)
            else:
                pause_s = 0.0
            self._left()
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause_s)

    def _serve(self, remote: str) -> None:
        wire = Wire(remote, self._tls)
        try:
            dialogue = Dialogue(wire, self._woken, self.database, stop=lambda: self._closed)
            types = dialogue.begin(self._wanted, leader_only=self._leader_only)
            locked = dialogue.lock(self.lock) if self.lock else False
            found, self._last, updates = dialogue.follow(types, self._last)
            with self._changed:
                self._replica.begin(types)
                if not found:
                    self._replica.clear()
                self._replica.take(updates)
                self._has_lock, self._ready, self._dialogue = locked, True, dialogue
                self._told(self._replica, ())
                self._changed.notify_all()
            log.info("following a database", database=self.database, remote=remote, lock=locked)
            while not self._closed:
                self._step(dialogue)
        finally:
            wire.close()

    def _step(self, dialogue: Dialogue) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    break
                pending = self._queue.popleft()
            dialogue.transact(pending)
        told = dialogue.next()
        if not told.anything:
            return
        with self._changed:
            events = [event for updates in told.updates for event in self._replica.take(updates)]
            self._last = told.last or self._last
            if told.locked is not None:
                self._has_lock = told.locked
            if events:
                self._told(self._replica, events)
            for pending in told.answered:
                pending.done.set()
            self._changed.notify_all()

    def _left(self) -> None:
        with self._changed:
            dialogue, self._dialogue = self._dialogue, None
            self._ready = self._has_lock = False
            for pending in dialogue.outstanding() if dialogue is not None else ():
                pending.lost = self._failure
                pending.done.set()
            self._changed.notify_all()


def _unreachable(session: Session, why: str) -> CalabashError:
    return CalabashError(f"{session} {why}", reason=Reason.UNREACHABLE, hint="see `calabash net doctor`")
