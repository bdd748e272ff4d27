"""Send usage records of the node to the server of the cluster; records are kept until the server has committed them.

Theory of operation. The outbox (``adapters.store.usage.outbox``) is a table of numbered usage records in the agent's
database. It also stores up to which number the server has acknowledged records, and up to which number they may have
been sent. One step reads the next records, sends them, and stores the number that the server acknowledges. If the agent
dies in between, the next agent repeats the step. If the server's database was restored from a backup, the server has
fewer records than it had acknowledged; the node sends the missing ones again, as far as it still has them. While the
server cannot be reached, records are kept. If too many wait, adjacent records are merged. If that does not suffice, the
node refuses new allocations, because their usage could not be recorded.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import structlog

from calabash.adapters.store.usage.outbox import NumberedUsage, UsageOutbox
from calabash.api.collected import ENTRIES_MAX, USAGE_PATH, UsageBatch, UsageEntry, UsageRefusal, UsageTaken
from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1_client import ClientConnection, connect, write_request

SEND_EVERY_S = 15.0
CALL_S = 20.0
KEPT_ROWS = 10_000  # acknowledged records that are kept for a server that is restored from a backup
WAITING_MAX = 200_000
_ANSWER_BYTES_MAX = 64 << 10
_TOKEN_BYTES_MAX = 16 << 10
_AUTHORITY_BYTES_MAX = 1 << 20

Post = Callable[[UsageBatch], UsageTaken]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageServer:
    """The server that collects usage records.

    Args:
        url: ``https://HOST:PORT``; in tests also ``http://HOST:PORT``.
        authority: PEM file with the authority that signed the server's certificate. It is read for each request.
        token: file with the token that authenticates the node. It is read for each request.
        every_s: seconds between two attempts to send.
    """

    url: str
    authority: Path
    token: Path
    every_s: float = SEND_EVERY_S

    def post(self, batch: UsageBatch) -> UsageTaken:
        """Send a batch of usage records; return the server's acknowledgement.

        Raises:
            CalabashError: API_DOWN if no acknowledgement arrived. The server may have stored the batch even so.
        """
        try:
            status, body = self._answer(msgspec.json.encode(batch))
            if status != 200:
                raise _unreachable(self.url, _refused(status, body))
            return msgspec.json.decode(body, type=UsageTaken)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise _unreachable(self.url, str(error) or type(error).__name__) from error

    def _answer(self, body: bytes) -> tuple[int, bytes]:
        at, deadline = urlsplit(self.url), time.monotonic() + CALL_S
        context = None
        if at.scheme == "https":
            context = ssl.create_default_context(cadata=_content(self.authority, _AUTHORITY_BYTES_MAX))
        token = _content(self.token, _TOKEN_BYTES_MAX).strip()
        headers = {"Host": at.netloc, "Authorization": f"Bearer {token}", "Connection": "close"}
        request = write_request("POST", USAGE_PATH, headers, body)
        line = connect(at.hostname or "", at.port or (80 if context is None else 443), deadline, context)
        with ClientConnection(line) as connection:
            content = connection.ask(request, deadline, bytes_max=_ANSWER_BYTES_MAX)
            return connection.status, content


class UsageSending:
    """Thread that sends usage records; ``full`` may be called from any thread.

    ``waiting`` is the number of records that were not acknowledged at the last check.

    Args:
        outbox: the records of the node.
        post: sends a batch; raises CalabashError if no acknowledgement arrives.
        every_s: seconds between two attempts to send.
        waiting_max: number of waiting records above which new allocations are refused.
        kept: number of acknowledged records that are kept for a server that is restored from a backup.
        entries: largest number of records in a batch.
    """

    def __init__(
        self,
        outbox: UsageOutbox,
        post: Post,
        *,
        every_s: float = SEND_EVERY_S,
        waiting_max: int = WAITING_MAX,
        kept: int = KEPT_ROWS,
        entries: int = ENTRIES_MAX,
    ) -> None:
        self._outbox = outbox
        self._post = post
        self._every_s = every_s
        self._waiting_max = waiting_max
        self._kept = kept
        self._entries = entries
        self._lost = False
        self._begun = outbox.youngest()
        self._full: CalabashError | None = None
        self._fault = ""
        self.waiting = 0  # records that were not acknowledged at the last check
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    @classmethod
    def to(cls, server: UsageServer | None, outbox: UsageOutbox) -> UsageSending:
        """Return a sender for a server; if ``server`` is None, records are removed as if they had been acknowledged."""
        if server is None:
            return cls(outbox, lambda batch: UsageTaken(last=batch.entries[-1].number), kept=0)
        return cls(outbox, server.post, every_s=server.every_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the batch that is being sent."""
        self._stop.set()
        self._thread.join()

    def full(self) -> CalabashError | None:
        """Return the error with which new allocations are refused; None while their usage can be recorded."""
        return self._full

    def step(self) -> bool:
        """Send one batch; return True if there may be more records to send.

        Raises:
            CalabashError: no acknowledgement arrived, or the outbox cannot be read or written.
        """
        marks = self._outbox.marks()
        rows = self._outbox.after(marks.acked, limit=self._entries)
        if not rows and not self._lost:
            return False
        entries = tuple(_entry(row) for row in rows)
        batch = UsageBatch(epoch=self._outbox.epoch(), after=marks.acked, lost=self._lost, entries=entries)
        taken = self._post(batch)
        if taken.last < marks.acked:
            after = self._outbox.go_back(taken.last).acked
            self._lost = after > taken.last
            log.warning(
                "the server has fewer records than it had acknowledged",
                has=taken.last,
                sent_from=after,
                lost=self._lost,
            )
            return True
        if taken.last > self._outbox.marks().sent:
            log.warning("this node's database was restored to an earlier state", has=self._begun, server=taken.last)
            self._outbox.renew(self._begun)
            return True
        self._lost = False
        reached = min(taken.last, rows[-1].number) if rows else taken.last
        self._outbox.acknowledge(reached)
        return bool(rows) and reached > marks.acked

    def keep_bounded(self) -> None:
        """Remove acknowledged records except the last ``kept``, and merge waiting records if there are too many.

        Raises:
            CalabashError: the outbox cannot be read or written.
        """
        while self._outbox.fold(keep=self._kept):
            pass
        waiting = self._outbox.waiting()
        if waiting > self._waiting_max:
            self._outbox.join()
            waiting = self._outbox.waiting()
        self.waiting = waiting
        full = waiting > self._waiting_max
        self._full = _too_many(waiting, self._waiting_max, self._fault) if full else None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                while self.step() and not self._stop.is_set():
                    pass
                if self._fault:
                    log.info("sending usage again")
                self._fault = ""
            except CalabashError as error:
                if error.message != self._fault:
                    log.warning("cannot send usage", error=error.message, hint=error.hint)
                self._fault = error.message
            try:
                self.keep_bounded()
            except CalabashError as error:
                log.warning("cannot prune the outbox of usage", error=error.message)
            self._stop.wait(self._every_s)


def _entry(row: NumberedUsage) -> UsageEntry:
    one = row.record
    return UsageEntry(
        number=row.number,
        allocation=one.allocation,
        namespace=one.tenant,
        pod=one.user.partition("/")[2],
        queue=one.queue,
        device=one.device,
        device_model=one.device_model,
        mode=one.mode,
        preemptible=one.preemptible,
        from_s=one.from_s,
        to_s=one.to_s,
        memory_mib=one.memory_mib,
        core_percent=one.core_percent,
        allocated_gpu_s=one.allocated_gpu_s,
        used_gpu_s=one.used_gpu_s,
        idle_s=one.idle_s,
        memory_mib_s=one.memory_mib_s,
        uncertain_s=one.uncertain_s,
    )


def _content(file: Path, most: int) -> str:
    with file.open("rb") as opened:
        return opened.read(most).decode("ascii")


def _refused(status: int, body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=UsageRefusal).message
    except msgspec.DecodeError:
        return f"status {status}"


def _unreachable(url: str, why: str) -> CalabashError:
    return CalabashError(
        f"cannot send usage to {url}: {why}",
        reason=Reason.API_DOWN,
        hint="the node keeps the records and sends them again; check the server of the cluster",
    )


def _too_many(waiting: int, most: int, fault: str) -> CalabashError:
    why = f"; {fault}" if fault else ""
    return CalabashError(
        f"{waiting} usage records wait for the server of the cluster, the limit is {most}{why}",
        reason=Reason.API_DOWN,
        hint="restore the server; until then new containers with devices do not start on this node",
    )
