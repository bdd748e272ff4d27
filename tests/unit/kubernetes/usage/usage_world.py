"""Nodes that meter and a server that collects, without a network; databases are real, the API server is in memory."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from calabash.adapters.kube.objects.core import NAMESPACE, POD
from calabash.adapters.kube.objects.resources import QUEUE
from calabash.adapters.store import Store, open_store
from calabash.api.collected import AUDIENCE, USAGE_PATH, UsageBatch, UsageTaken
from calabash.kubernetes.node_plugin.reports.usage_sender import UsageSending
from calabash.kubernetes.usage.attribution import Attribution, TenantTree
from calabash.kubernetes.usage.collection import UsageCollection
from calabash.kubernetes.usage.node_identity import (
    NODE_CLAIM,
    TOKEN_REVIEW,
    TokenReview,
    TokenReviewStatus,
    TokenReviewUser,
)
from calabash.model.allocation import AllocationRecord, AllocationState, UsageRecord
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.membership.container import container_allocation
from calabash.transport.http1 import HttpQuestion
from calabash_testing.api_server.client import MemoryKube

SYSTEM = "calabash-system"
AGENT = f"system:serviceaccount:{SYSTEM}:calabash-agent"
NOW_S = 1_800_000_000.0
UIDS = tuple(f"0f8fad5b-d9cb-469f-a165-70867728950{i:x}" for i in range(16))


class ReviewingKube(MemoryKube):
    """API server in memory that reviews tokens: ``node:NAME`` is the token of the agent of that node."""

    def __init__(self) -> None:
        super().__init__()
        self.reviews: dict[str, TokenReviewStatus] = {}
        self.asked = 0
        self.uids = dict(enumerate(UIDS))  # UID of pod pI by I

    def create(self, kind: Any, obj: Any, namespace: str = "") -> Any:
        if kind is not TOKEN_REVIEW:
            return super().create(kind, obj, namespace)
        self.asked += 1
        token = obj["spec"]["token"]
        if token.startswith("node:"):
            return TokenReview(status=reviewed(token.removeprefix("node:")))
        return TokenReview(status=self.reviews.get(token, TokenReviewStatus()))


def reviewed(*nodes: str, user: str = AGENT, audience: str = AUDIENCE) -> TokenReviewStatus:
    """Return the API server's review of a service account token that is bound to a pod on those nodes."""
    found = TokenReviewUser(username=user, extra={NODE_CLAIM: nodes} if nodes else {})
    return TokenReviewStatus(authenticated=True, user=found, audiences=(audience,))


def cluster(*pods: tuple[str, str]) -> ReviewingKube:
    """Return a cluster with pods (name, node) in namespace ``team``, whose queue is below the queue ``vision``."""
    kube = ReviewingKube()
    kube.create(QUEUE, {"metadata": {"name": "vision"}, "spec": {}})
    kube.create(QUEUE, {"metadata": {"name": "vision-train"}, "spec": {"parent": "vision"}})
    kube.create(NAMESPACE, {"metadata": {"name": "team", "labels": {"calabash.dev/queue": "vision-train"}}})
    for number, (name, node) in enumerate(pods):
        spec = {"nodeName": node, "containers": [{"name": "main"}]}
        made = kube.create(POD, {"metadata": {"name": name, "namespace": "team"}, "spec": spec}, "team")
        kube.uids[number] = made.metadata.uid
    return kube


@dataclass(slots=True)
class ServerSide:
    """The server that collects usage; ``log`` has all batches that it received."""

    store: Store
    kube: ReviewingKube
    now_s: float = NOW_S
    log: list[tuple[str, bytes]] = field(default_factory=list)
    collection: UsageCollection = field(init=False)

    def __post_init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.collection = UsageCollection(
            self.store,
            self.kube,
            namespace=SYSTEM,
            listener=listener,
            context=None,
            attribution=Attribution(self.kube, TenantTree(self.kube)),
            now_s=lambda: self.now_s,
        )
        listener.close()  # the collection is asked without a network

    def post(self, node: str, body: bytes) -> UsageTaken:
        self.log.append((node, body))
        return self.collection.take(
            HttpQuestion(method="POST", path=USAGE_PATH, body=body, authorization=f"Bearer node:{node}")
        )

    def sums(self) -> dict[str, float]:
        """Return the metered seconds that the server has stored, by allocation."""
        return sums_of(self.store.usage())


class CutError(CalabashError):
    """The connection was cut."""

    def __init__(self) -> None:
        super().__init__("the line is cut", reason=Reason.API_DOWN)


class NodeSide:
    """A node that stores metered usage in a real database, and sends it to the server."""

    def __init__(self, name: str, home: Path, server: ServerSide, *, entries: int = 3) -> None:
        self.name, self.home, self.server, self._entries = name, home, server, entries
        self.store = open_store(f"sqlite:///{home / f'{name}.db'}")
        self.until_s: dict[str, float] = {}
        self.cut = ""  # "request" or "answer": the part of the next exchange that is lost
        self.sending = self.begin()

    def begin(self, **more: Any) -> UsageSending:
        self.sending = UsageSending(self.store.outbox, self._post, entries=self._entries, **more)
        return self.sending

    def restart(self) -> None:
        """Start again as after a kill: only the database is kept."""
        self.store.close()
        self.store = open_store(f"sqlite:///{self.home / f'{self.name}.db'}")
        self.begin()

    def reinstall(self) -> None:
        """Start again with an empty disk."""
        self.store.close()
        for file in self.home.glob(f"{self.name}.db*"):
            file.unlink()
        self.store = open_store(f"sqlite:///{self.home / f'{self.name}.db'}")
        self.begin()

    def grant(self, pod: int, *, at_s: float) -> AllocationRecord:
        """Grant a slice to a container of pod ``pI``."""
        record = granted(self.name, pod, self.server.kube.uids[pod], at_s=at_s)
        self.store.grant(record)
        self.until_s[record.id] = at_s
        return record

    def meter(self, record: AllocationRecord, length_s: float, *, last: bool = False) -> UsageRecord:
        """Store the next usage interval of an allocation; with ``last``, in the transaction that releases it."""
        so_far = self.store.usage_sums.all_so_far([record]).get(record.id)
        since_s = self.until_s[record.id]
        number = so_far.next_sequence if so_far else 0
        one = interval(record, since_s, since_s + length_s, number)
        if last:
            self.store.release(record.id, at=one.to_s, reason="done", explanation="", usage=[one])
        else:
            self.store.add_usage([one])
        self.until_s[record.id] = one.to_s
        return one

    def drain(self) -> None:
        """Send until everything has arrived, with retries after losses."""
        while True:
            try:
                if not self.sending.step():
                    return
            except CutError:
                continue

    def _post(self, batch: UsageBatch) -> UsageTaken:
        cut, self.cut = self.cut, ""
        if cut == "request":
            raise CutError
        taken = self.server.post(self.name, msgspec.json.encode(batch))
        if cut == "answer":
            raise CutError
        return taken


def granted(node: str, pod: int, uid: str, *, at_s: float) -> AllocationRecord:
    return AllocationRecord(
        id=container_allocation(uid, "main"),
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1024, core_percent=25, tenant="team"),
        placement=Placement(
            node=NodeName(node),
            mode=ModeName("vgpu"),
            slices=(Slice(device=DeviceUuid(f"GPU-{node}"), memory_mib=1024, core_percent=25),),
        ),
        user=f"team/p{pod}",
        created_at=at_s,
        granted_at=at_s,
    )


def interval(record: AllocationRecord, from_s: float, to_s: float, number: int) -> UsageRecord:
    part = record.placement.slices[0]
    length_s = to_s - from_s
    return UsageRecord(
        allocation=AllocationId(record.id),
        sequence=number,
        device=part.device,
        device_model="T4",
        mode=record.placement.mode,
        tenant=record.request.tenant,
        queue=record.request.queue,
        user=record.user,
        from_s=from_s,
        to_s=to_s,
        memory_mib=part.memory_mib,
        core_percent=part.core_percent,
        allocated_gpu_s=length_s * part.core_percent / 100,
        used_gpu_s=length_s / 8,
        idle_s=length_s / 4,
        memory_mib_s=length_s * part.memory_mib,
    )


def sums_of(records: Sequence[UsageRecord]) -> dict[str, float]:
    """Return metered seconds by allocation, to the microsecond; earlier grants of the same name are included."""
    found: dict[str, list[float]] = {}
    for one in records:
        found.setdefault(one.allocation.partition("~")[0][:50], []).append(one.to_s - one.from_s)
    return {name: round(math.fsum(lengths), 6) for name, lengths in found.items()}
