"""Receive usage records from agents: check, attribute and commit them to the database, and then acknowledge them.

Theory of operation. A node numbers its records and sends those after the last acknowledged number. Records that were
received before are recognized by their number. A batch that would leave a gap is not stored, and the answer tells the
node the number after which to continue. The server keeps no state between two requests except in the database. It may
therefore be killed at any step: the node sends the same records again. A node can send records for itself only, because
its name is derived from its token by the API server. Durations and amounts in a record are limited to possible values,
and the products of both are computed here.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from socket import socket

import msgspec

from calabash.adapters.kube import KubeClient
from calabash.adapters.store import Store
from calabash.adapters.store.usage.outbox import NumberedUsage
from calabash.api.collected import (
    BATCH_BYTES_MAX,
    USAGE_PATH,
    UsageBatch,
    UsageEntry,
    UsageRefusal,
    UsageTaken,
)
from calabash.kubernetes.usage.attribution import Attribution, UsageAccount
from calabash.kubernetes.usage.node_identity import NodeIdentity
from calabash.model.allocation import UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.stated_version import require_stated
from calabash.model.versions import USAGE_BATCH
from calabash.transport.http1 import Bounds, HttpQuestion, HttpReply
from calabash.transport.small_server import SmallServer

PODS_MAX = 50  # limit of pods read from the API server for one batch; the rest of the batch is sent again
AHEAD_S = 300.0  # limit by which a node's clock may be ahead
TOLD_AGAIN_S = 3600.0
_TOLD_MAX = 1000
_STATUS = {
    Reason.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    Reason.NOT_AUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Reason.CONFLICT: HTTPStatus.CONFLICT,
    Reason.NOT_FOUND: HTTPStatus.NOT_FOUND,
}
NODE_RECORDS_MAX = 250_000.0  # records; slightly more than the limit of waiting records on a node
NODE_RECORDS_PER_S = 20.0
POD_COST = 50.0  # cost of reading a pod from the API server


class NodeAllowances:
    """Rate limit for each node, so that one node cannot delay the others. Must be used by one thread at a time.

    Each node has a token bucket: an allowance of ``NODE_RECORDS_MAX`` units that is refilled at ``NODE_RECORDS_PER_S``
    units a second. A record costs one unit, and a pod that must be read from the API server costs ``POD_COST``.

    Args:
        now_s: returns monotonic time in seconds.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._left: dict[str, tuple[float, float]] = {}  # balance, and the time at which it was computed

    def require(self, node: str) -> None:
        """Check that the bucket of a node is not empty.

        Raises:
            CalabashError: CONFLICT if it is.
        """
        left, _ = self._now(node)
        if left < 1:
            raise CalabashError(
                f"node {node} sends more than {NODE_RECORDS_PER_S:g} intervals a second,"
                f" and has used up {NODE_RECORDS_MAX:g} beyond that",
                reason=Reason.CONFLICT,
                hint="it may go on in a minute; see what runs on that node",
            )

    def took(self, node: str, cost: float) -> None:
        """Subtract the cost of a request from the node's bucket; the balance may become negative."""
        left, now_s = self._now(node)
        self._left[node] = left - cost, now_s

    def _now(self, node: str) -> tuple[float, float]:
        now_s = self._now_s()
        left, at_s = self._left.get(node, (NODE_RECORDS_MAX, now_s))
        return min(NODE_RECORDS_MAX, left + (now_s - at_s) * NODE_RECORDS_PER_S), now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionState:
    """State of the collection.

    Args:
        sources: number of node databases from which records are stored.
        seen_at_s: time of the last batch of each node since this program started, in seconds since the epoch.
    """

    sources: int
    seen_at_s: Mapping[str, float]


class UsageCollection:
    """HTTPS server that receives usage records from nodes and stores them.

    Args:
        store: the database.
        client: client of the API server. It must have rights to create TokenReviews and to read pods, namespaces and
            queues.
        namespace: namespace of the agents.
        listener: listening socket.
        context: TLS context with the server's certificate; None to speak plain HTTP in tests.
        account: service account of the agents.
        attribution: finds the account that pays for a record.
        now_s: returns the time in seconds since the epoch.
        taken: called with the new records of each batch after they were committed.
    """

    def __init__(
        self,
        store: Store,
        client: KubeClient,
        *,
        namespace: str,
        listener: socket,
        context: ssl.SSLContext | None,
        account: str = "calabash-agent",
        attribution: Attribution,
        now_s: Callable[[], float] = time.time,
        taken: Callable[[Sequence[UsageRecord]], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._now_s = now_s
        self._noted = taken
        self._identity = NodeIdentity(client, f"system:serviceaccount:{namespace}:{account}")
        self._attribution = attribution
        self._allowances = NodeAllowances()
        self._told: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # time of the last batch of each node since this program started
        # One at a time: the database takes one writer, and a crowd of nodes must not take all of the process.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self.server = SmallServer(
            self.handle,
            listener,
            name="usage",
            tls=context,
            bounds=Bounds(body_bytes=BATCH_BYTES_MAX, held_bytes=64 << 20, connections=1024, per_peer=64),
        )

    def stop(self) -> None:
        """Stop the server. A commit in progress is finished."""
        self.server.stop()
        self._worker.shutdown()

    def state(self) -> CollectionState:
        """Return the number of node databases and the times of the nodes' last batches."""
        return CollectionState(
            sources=len(self._store.collected.sources()),
            seen_at_s=dict(self._seen),
        )

    @property
    def seen_at_s(self) -> Mapping[str, float]:
        """Time of the last batch of each node since this program started, in seconds since the epoch."""
        return dict(self._seen)

    async def handle(self, question: HttpQuestion) -> HttpReply:
        """Answer one HTTP request: with the acknowledgement of a batch, or with an error."""
        loop = asyncio.get_running_loop()
        try:
            taken = await loop.run_in_executor(self._worker, self.take, question)
        except CalabashError as error:
            status = _STATUS.get(error.reason, HTTPStatus.SERVICE_UNAVAILABLE)
            refusal = UsageRefusal(error=error.reason, message=str(error)[:1024])
            return HttpReply(status=status, body=msgspec.json.encode(refusal))
        return HttpReply(body=msgspec.json.encode(taken))

    def take(self, question: HttpQuestion) -> UsageTaken:
        """Commit the new records of a batch; return the number up to which the node's records are stored.

        Raises:
            CalabashError: the sender is not authenticated, the batch is invalid, the node sends too much, or the API
                server or the database fails. Nothing was committed.
        """
        if (question.method, question.path) != ("POST", USAGE_PATH):
            raise CalabashError(f"{question.path[:128]} is not served here", reason=Reason.NOT_FOUND)
        node = self._identity.node_of(question.authorization)
        self._allowances.require(node)
        self._seen[node] = self._now_s()
        batch = read_batch(question.body)
        last = self._store.collected.last(node, batch.epoch)
        if batch.after > last:
            if not batch.lost:
                return UsageTaken(last=last)
            self._write_event(node, "usage_lost", _lost_message(node, last, batch.after))
        accounts = self._accounts(node, [e for e in batch.entries if e.number > last])
        now_s = self._now_s()
        new = [_interval(e, account, now_s=now_s) for e, account in accounts]
        last = self._store.collected.commit(node, batch.epoch, new, after=batch.after, lost=batch.lost, at_s=now_s)
        self._noted([one.record for one in new])
        return UsageTaken(last=last)

    def _accounts(self, node: str, entries: Sequence[UsageEntry]) -> list[tuple[UsageEntry, UsageAccount]]:
        """Return the first entries with their accounts: as many as need at most ``PODS_MAX`` reads of pods."""
        found: list[tuple[UsageEntry, UsageAccount]] = []
        asked = 0
        for entry in entries:
            asked += not self._attribution.knows(node, entry)
            if asked > PODS_MAX:
                break
            account = self._attribution.account_of(node, entry)
            if account.doubt:
                self._write_event(account.doubt, "usage_doubtful", account.doubt)
            found.append((entry, account))
        self._allowances.took(node, len(found) + POD_COST * asked)
        return found

    def _write_event(self, about: str, kind: str, message: str) -> None:
        """Write an event of a kind (``usage_doubtful``) to the journal.

        For the same subject ``about``, an event is written at most once in ``TOLD_AGAIN_S`` seconds.
        """
        now_s = self._now_s()
        if abs(now_s - self._told.get(about, float("-inf"))) < TOLD_AGAIN_S:
            return
        if len(self._told) >= _TOLD_MAX:
            self._told.clear()
        self._told[about] = now_s
        self._store.add_events([{"at": now_s, "kind": kind, "message": message}])


def _lost_message(node: str, last: int, after: int) -> str:
    gone = f"usage of node {node} from number {last + 1} to {after} is not there any more"
    return gone if last else f"{gone}, or was sent under the name of an earlier database"


def read_batch(body: bytes) -> UsageBatch:
    """Decode a batch of usage records strictly.

    Raises:
        CalabashError: VERSION_MISMATCH if the batch has an unsupported version, BAD_REQUEST if the JSON is not a
            batch, or the records are not in order.
    """
    try:
        batch = msgspec.json.decode(body, type=UsageBatch)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        require_stated(USAGE_BATCH, body, "the batch of usage records")
        raise _bad(str(error)) from error
    USAGE_BATCH.require(batch.version, "the batch of usage records")
    _check_order(batch.after, batch.entries)
    return batch


def _check_order(after: int, entries: Sequence[UsageEntry]) -> None:
    for entry in entries:
        if entry.number <= after:
            raise _bad(f"number {entry.number} comes after {after}")
        if entry.to_s < entry.from_s:
            raise _bad(f"interval {entry.number} ends before it begins")
        after = entry.number


def _interval(entry: UsageEntry, account: UsageAccount, *, now_s: float) -> NumberedUsage:
    """Return the record to store.

    Busy and idle time are limited to the duration of the record. If the record ends more than ``AHEAD_S`` seconds in
    the future, its times are moved back so that it ends now.
    """
    length_s = entry.to_s - entry.from_s
    back_s = entry.to_s - now_s if entry.to_s > now_s + AHEAD_S else 0.0
    used_s = min(entry.used_gpu_s, length_s)
    record = UsageRecord(
        allocation=AllocationId(entry.allocation),
        device=DeviceUuid(entry.device),
        device_model=entry.device_model,
        mode=entry.mode,
        tenant=account.tenant,
        project=account.project,
        queue=account.queue,
        user=account.user,
        preemptible=entry.preemptible,
        from_s=max(0.0, entry.from_s - back_s),
        to_s=max(0.0, entry.from_s - back_s) + length_s,
        memory_mib=entry.memory_mib,
        core_percent=entry.core_percent,
        allocated_gpu_s=_product(entry.allocated_gpu_s, length_s, entry.core_percent / 100),
        used_gpu_s=used_s,
        idle_s=min(entry.idle_s, length_s - used_s),
        memory_mib_s=_product(entry.memory_mib_s, length_s, entry.memory_mib),
        uncertain_s=min(entry.uncertain_s, max(0.0, now_s - entry.to_s)),
    )
    return NumberedUsage(number=entry.number, record=record)


def _product(said: float, length_s: float, amount: float) -> float:
    """Return ``length_s * amount``, or the value in the record if that differs from it by rounding only.

    Args:
        said: the value in the record.
    """
    product = length_s * amount
    return said if abs(said - product) <= 1e-3 * max(1.0, amount) else product


def _bad(what: str) -> CalabashError:
    return CalabashError(
        f"the batch cannot be read: {what}"[:512],
        reason=Reason.BAD_REQUEST,
        hint="only agents of calabash write it",
    )
