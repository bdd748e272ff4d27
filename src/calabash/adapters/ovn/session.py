"""Session with an OVSDB database: follows it and writes to it, over any of its servers that leads.

A thread holds the connection: it requests the schema, the server's state, the lock and the tables; then it applies
updates
and sends transactions of other threads. Any failure ends the connection, and the next server is tried after at most
half a
second, so that the wait for a new leader is that of the election. A transaction that was running then has an unknown
outcome and raises an error that says so; the caller must read again. Updates of a transaction arrive before its answer,
so
that a writer reads what it wrote.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from calabash.adapters.ovn.dialogue import Dialogue, NotHereError
from calabash.adapters.ovn.pending import Pending, results_of
from calabash.adapters.ovn.replica import Replica, RowEvent
from calabash.adapters.ovn.rotation import PAUSE_S_MAX, Rotation
from calabash.adapters.ovn.wire import Credentials, LostError, Wire, checked_remotes
from calabash.model.errors import CalabashError, Reason

_LOCK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

log = structlog.get_logger(__name__)


class Session:
    """Followed database.

    Args:
        remotes: its servers, as ``checked_remotes`` takes them.
        database: its name, like ``OVN_Northbound``.
        tables: columns to follow, by table; columns that this version of the database lacks are left out.
        lock: only its holder can write; "" for none. OVSDB accepts a name with a hyphen, but never grants the lock.
        leader_only: use only the leader of a cluster.
        credentials: for ``ssl:``.
        told: called in the session's thread with changes; with none when the copy is complete again. Must not block.
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
        """True if the copy is complete and followed."""
        return self._ready

    @property
    def has_lock(self) -> bool:
        """True if this session may write: it has the lock, or needs none."""
        return self._ready and (self._has_lock or not self.lock)

    @property
    def failure(self) -> str:
        """The reason why there is no connection; "" while there is one."""
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
        """Context with the copy, which does not change meanwhile."""
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
        """Run all of the operations or none; return their results.

        Raises CalabashError: CONFLICT (refused, or another session has the lock), UNREACHABLE (not available, or the
        connection was
        lost), TIMEOUT (not answered). After the latter two the outcome is unknown.
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

    def reconnect(self) -> None:
        """Leave the server, and read everything again from it or another."""
        if (dialogue := self._dialogue) is not None:
            dialogue.leave = True
            self._notify()

    def _notify(self) -> None:
        with self._changed:
            if self._wake >= 0:
                with suppress(BlockingIOError):  # it is awake
                    os.write(self._wake, b"x")

    def _run(self) -> None:
        rotation = Rotation(self._remotes)
        while not self._closed:
            remote = rotation.next()
            try:
                self._serve(remote)
            except (NotHereError, OSError, LostError, CalabashError) as error:
                self._failure = f"{remote}: {error}"
                pause_s = rotation.pause_s(other_may=isinstance(error, NotHereError))
            except Exception as error:  # an unexpected message: leave this server
                self._failure = f"{remote}: {error!r}"
                pause_s = PAUSE_S_MAX
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
