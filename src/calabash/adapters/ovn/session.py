"""One database of OVSDB, followed and written to, over whichever of its servers is there and leads.

Theory of operation. A thread of its own holds the connection: it asks for the schema, for the server's state, for the lock,
and for the tables; then it takes updates and sends transactions that other threads hand in. Whatever goes wrong ends the
connection, and the next server is tried, after a pause of at most half a second: whoever waits for a leader waits for the
election, not for the client. A transaction that was under way then has an outcome that nobody knows, and says so; to look
again is the caller's work. Updates of a transaction arrive before its answer does, so who has written reads what is written.
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
    """A database.

    Args:
        remotes: its servers, as ``checked_remotes`` takes them.
        database: its name, as ``OVN_Northbound``.
        tables: the columns that are followed, by table; those that this version of the database lacks are left out.
        lock: nobody writes who does not have it; "" none. A name with a hyphen would be taken, and the lock never given.
        leader_only: of a cluster, only its leader is used.
        credentials: for ``ssl:``.
        told: called in the session's thread with what changed; with nothing when the copy is whole again. It must not wait.
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
            raise CalabashError(f"{lock!r} is no name of a lock of OVSDB", hint="letters, digits and underscores")
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
        self._failure = "it was never reached"
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=f"ovsdb {database}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{self.database} at {', '.join(self._remotes)}"

    @property
    def ready(self) -> bool:
        """Whether the copy is whole and followed."""
        return self._ready

    @property
    def has_lock(self) -> bool:
        """Whether this one may write: it has the lock, or needs none."""
        return self._ready and (self._has_lock or not self.lock)

    @property
    def failure(self) -> str:
        """Why there is no connection, "" while there is one."""
        return "" if self._ready else self._failure

    def close(self) -> None:
        """End the connection, which gives the lock up."""
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
        """The copy, which does not change meanwhile."""
        with self._changed:
            yield self._replica

    def wait_for(self, holds: Callable[[Replica], bool], timeout_s: float) -> bool:
        """Wait until it holds of a whole copy, which is looked at after every update; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or (self._ready and holds(self._replica)), timeout_s)

    def wait_ready(self, timeout_s: float) -> None:
        """Raises UNREACHABLE when the database is not there in time."""
        if not self.wait_for(lambda _: True, timeout_s) or self._closed:
            raise _unreachable(self, f"does not answer within {timeout_s:g}s: {self._failure}")

    def wait_lock(self, timeout_s: float) -> bool:
        """Whether the lock has been given in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or self.has_lock, timeout_s) and self.has_lock

    def transact(self, operations: Sequence[Mapping[str, Any]], *, timeout_s: float = 10.0) -> list[Any]:
        """All of the operations or none; their results.

        Raises CalabashError: CONFLICT (refused, or another has the lock), UNREACHABLE (not there, or lost on the way), TIMEOUT
        (not answered). After the latter two nobody knows whether it was done.
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
                f"{self.database} did not answer a transaction within {timeout_s:g}s; nobody knows whether it was done",
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
            except Exception as error:  # a message that no server sends: not to be served by this one any more
                self._failure = f"{remote}: {error!r}"
                pause_s = PAUSE_S_MAX
                log.exception("a database server said what was not understood", database=self.database, remote=remote)
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
            log.info("a database is followed", database=self.database, remote=remote, lock=locked)
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
