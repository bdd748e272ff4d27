"""Append-only audit log of a pool: a writer thread seals lines into a chain and stores them.

The seal of a line is a keyed digest of the line and of the seal before it, so a changed or missing line is detected. Any
thread adds lines and may wait until they are written. The key of the seals and the head of the chain (number and seal of
the last line) are files in the pool's home and not rows of the database, so that access to the database is not enough to
forge the log.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.store.audit import AuditTable
from calabash.model.audit import AuditHead, AuditLine, seal_line, verify_chain
from calabash.model.errors import CalabashError, Reason

KEY_FILE, HEAD_FILE = "audit.key", "audit.head"
WAITING_MAX = 10_000
GATHER_S = 0.2  # lines for which no request waits are gathered for so long and written together
AT_ONCE = 100  # bounded lines of one user in a row; after that one per second
PEOPLE_MAX = 10_000
PAGE = 1000

log = structlog.get_logger(__name__)
_Waiting = tuple[AuditLine, "Future[None]"]


class AuditTrail:
    """The audit log of one pool. ``add`` and ``verify`` may be called from any thread."""

    def __init__(self, home: Path, table: AuditTable, clock: Clock) -> None:
        self._home, self._table, self._clock = home, table, clock
        self._key = _key(home / KEY_FILE)
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(WAITING_MAX)
        self._awaited = threading.Event()
        self._people: dict[str, tuple[float, float, int]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write all lines that were added, and end the writer thread; waits at most 10 seconds."""
        self._waiting.put(None)
        self._awaited.set()
        self._thread.join(timeout=10)

    def add(self, line: AuditLine, *, bounded: bool = False) -> Future[None]:
        """Queue a line for writing and return a future that is done when the line is stored.

        Args:
            line: the line; its time is set to now.
            bounded: True to limit this user's lines to a burst of AT_ONCE and then one per second. Further lines are
                dropped; the reason of the user's next line says how many. A bounded line does not wake the writer
                thread, so it may be written up to GATHER_S seconds later.

        The future fails with STORE_UNAVAILABLE if WAITING_MAX lines wait to be written.
        """
        done: Future[None] = Future()
        line = replace(line, at=self._clock.now_s())
        if bounded:
            left_out = self._admitted(line.user, line.at)
            if left_out < 0:
                done.set_result(None)
                return done
            if left_out:
                line = replace(line, reason=f"{line.reason} ({left_out} lines of this user left out before)".strip())
        try:
            self._waiting.put_nowait((line, done))
            if not bounded:
                self._awaited.set()
        except queue.Full:
            done.set_exception(
                CalabashError("the audit log cannot be written now", reason=Reason.STORE_UNAVAILABLE, hint="ask again")
            )
        return done

    def verify(self) -> tuple[AuditHead, str]:
        """Verify the hash chain of all lines of the audit log.

        Return number and seal of the last line before the first error, and a text that names this error ("" if there is
        none). Lines that are written during the verification may be left out.
        """
        head = self._head()
        at = self._table.beginning()
        known = head is None or at.id > head.id
        if head is not None and head.id == at.id:
            known = head.seal == at.seal
        while lines := self._table.lines(after=at.id, limit=PAGE):
            at, wrong = verify_chain(lines, at, self._key)
            if wrong:
                return at, wrong
            known = known or any(head is not None and (line.id, line.seal) == (head.id, head.seal) for line in lines)
        if head is None and at.id:
            return at, f"{self._home / HEAD_FILE} is missing: lines may have been cut off at the end"
        return at, "" if known else f"the log ended with line {head.id if head else 0}: lines were cut off"

    def _admitted(self, user: str, now_s: float) -> int:
        """Return the number of lines of this user that were dropped before this one; -1 if this line is to be dropped."""
        with self._lock:
            if len(self._people) > PEOPLE_MAX:
                self._people.clear()
            left, since_s, out = self._people.get(user, (float(AT_ONCE), now_s, 0))
            left = min(float(AT_ONCE), left + max(0.0, now_s - since_s))
            admitted = left >= 1
            self._people[user] = (left - 1, now_s, 0) if admitted else (left, now_s, out + 1)
            return out if admitted else -1

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            self._awaited.wait(GATHER_S)
            self._awaited.clear()
            with suppress(queue.Empty):
                while len(batch) < PAGE:
                    batch.append(self._waiting.get_nowait())
            found = [item for item in batch if item is not None]
            try:
                self._write([line for line, _ in found])
            except Exception as error:
                log.warning("the audit log cannot be written", error=str(error))
                for _, done in found:
                    done.set_exception(error)
            else:
                for _, done in found:
                    done.set_result(None)
            if None in batch:
                return

    def _write(self, lines: list[AuditLine]) -> None:
        head = self._table.end()
        chain: list[AuditLine] = []
        for line in lines:
            chain.append(seal_line(line, head, self._key))
            head = AuditHead(id=chain[-1].id, seal=chain[-1].seal)
        self._table.add(chain)
        if chain:
            write_head(self._home, head)

    def _head(self) -> AuditHead | None:
        try:
            number, seal = (self._home / HEAD_FILE).read_text().split()
            return AuditHead(id=int(number), seal=seal)
        except (OSError, ValueError):
            return None


def write_head(home: Path, head: AuditHead) -> None:
    """Write number and seal of the log's last line to the head file in the pool's home."""
    temporary = home / f".{HEAD_FILE}"
    temporary.write_text(f"{head.id} {head.seal}\n")
    temporary.chmod(0o600)
    temporary.rename(home / HEAD_FILE)


def _key(path: Path) -> bytes:
    """Return the 32-byte key in the file; create the file if it does not exist. Raises BAD_FILE for another size."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(32))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    key = path.read_bytes()
    if len(key) != 32:
        raise CalabashError(
            f"{path} has {len(key)} bytes, not 32",
            reason=Reason.BAD_FILE,
            hint="restore it from a backup; without it the audit log cannot be verified",
        )
    return key
