"""Estimate the usage of running pods for which nodes have not sent usage records yet.

Theory of operation. The agent of a node writes a usage record of each slice once a minute and sends it within 15
seconds. For the time since the last record, the server knows from ``GpuNode`` objects which slices pods hold.
``update`` records when each slice was first seen. The open usage of a slice is the time from the end of its last
record, or from the time at which it was first seen, until now. It contains no busy time, because only the records have
that. After a slice has ended, its open usage up to the end is kept until its last record has arrived; otherwise sums
that users see would decrease for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from calabash.adapters.clock import Clock
from calabash.kubernetes.objects.tenants import NamespacePlace, TenantMap
from calabash.kubernetes.server.cluster import ClusterMoment
from calabash.kubernetes.server.state import ServedPod
from calabash.kubernetes.server.views import user_of
from calabash.model.allocation import UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId
from calabash.model.tenancy import DEFAULT_PROJECT

LAG_MAX_S = 300.0  # limit of open usage after the last record, for a node that sends nothing
ENDED_KEPT_S = 120.0
TAIL_S = 5.0  # an end is detected with at most this delay
POLL_NS = 1_000_000_000

_Key = tuple[str, str]  # allocation and device


@dataclass(slots=True)
class _Held:
    """A slice that a pod holds, or held until a short time ago.

    Args:
        record: a usage record of the slice with its amounts; its times are zero.
        seen_s: time at which the slice was first seen.
        known: True if the slice was already held when this program started.
        ended_s: time at which the slice was no longer held; None while it is held.
    """

    record: UsageRecord
    seen_s: float
    known: bool
    ended_s: float | None = None


class ClusterUsage:
    """Open usage of all slices. Thread-safe.

    Args:
        moment: returns a snapshot of the cluster.
        place: returns the tenant, project and queue of a pod.
        clock: the clock.
        reached: for each slice (allocation and device) with a record in the last ``LAG_MAX_S`` seconds, the end time
            of its last record in the store.
    """

    def __init__(
        self,
        moment: Callable[[], ClusterMoment],
        place: Callable[[ServedPod, TenantMap], NamespacePlace],
        clock: Clock,
        *,
        reached: Mapping[_Key, float],
    ) -> None:
        self._moment, self._place, self._clock = moment, place, clock
        self._lock = threading.Lock()
        self._held: dict[_Key, _Held] = {}
        self._reached = dict(reached)
        self._updated_ns: int | None = None

    def taken(self, records: Iterable[UsageRecord]) -> None:
        """Take note of records that are in the store now: the time that they cover is no longer open usage."""
        with self._lock:
            for one in records:
                key = one.allocation, one.device
                self._reached[key] = max(one.to_s, self._reached.get(key, 0.0))

    def update(self, moment: ClusterMoment) -> None:
        """Update the slices that pods hold from a snapshot, and forget ended slices whose last record has arrived."""
        now_s, found = self._clock.now_s(), self._slices(moment)
        with self._lock:
            first = self._updated_ns is None
            for key, record in found.items():
                before = self._held.get(key)
                if before is None or before.ended_s is not None:
                    self._held[key] = _Held(record, now_s, known=first)
                else:
                    before.record = record
            for key, held in list(self._held.items()):
                if key not in found and held.ended_s is None:
                    held.ended_s = now_s
                if held.ended_s is not None and self._over(key, held.ended_s, now_s):
                    del self._held[key]
            self._reached = {key: until_s for key, until_s in self._reached.items() if key in self._held}
            self._updated_ns = self._clock.monotonic_ns()

    def records(self) -> tuple[Sequence[UsageRecord], float]:
        """Return the open usage as records, and the time up to which these and the store's records are complete.

        That time is earlier than now if a slice has had no record for more than ``LAG_MAX_S`` seconds, because its open
        usage is limited to that length.
        """
        updated_ns = self._updated_ns
        if updated_ns is None or self._clock.monotonic_ns() - updated_ns >= POLL_NS:
            self.update(self._moment())
        with self._lock:
            now_s = self._clock.now_s()
            spans = [(held, self._begin_s(key, held)) for key, held in self._held.items()]
        ends = [(held, begin_s, min(held.ended_s or now_s, begin_s + LAG_MAX_S)) for held, begin_s in spans]
        counted_s = min((end_s for held, _, end_s in ends if held.ended_s is None), default=now_s)
        return [_lasting(held.record, begin_s, end_s) for held, begin_s, end_s in ends if begin_s < end_s], counted_s

    def write(self) -> tuple[float, Mapping[str, float]]:
        """Return the current time and, by tenant, the earlier time up to which the store has all usage of the tenant.

        Tenants whose usage is complete are left out. Nothing is written, despite the name: the method implements the
        interface of billing, which on a single machine writes the open usage to the store. In a cluster only nodes
        create records.
        """
        behind: dict[str, float] = {}
        for one in self.records()[0]:
            behind[one.tenant] = min(one.from_s, behind.get(one.tenant, one.from_s))
        return self._clock.now_s(), behind

    def _begin_s(self, key: _Key, held: _Held) -> float:
        """Return the time from which usage of the slice is open: the end of its last record, or when it was first seen.

        If the slice was not held yet when this program started, the result is the later of the two. A last record that
        ends before the slice was first seen belongs to an earlier use of the device by the same allocation.
        """
        reached_s = self._reached.get(key, 0.0)
        return reached_s if reached_s and held.known else max(reached_s, held.seen_s)

    def _over(self, key: _Key, ended_s: float, now_s: float) -> bool:
        return self._reached.get(key, 0.0) >= ended_s - TAIL_S or now_s >= ended_s + ENDED_KEPT_S

    def _slices(self, moment: ClusterMoment) -> dict[_Key, UsageRecord]:
        found: dict[_Key, UsageRecord] = {}
        for pod in moment.pods:
            place = self._place(pod, moment.tenants)
            for held in moment.parts.get(pod.facts.uid, ()):
                part, key = held.part, (held.part.allocation, held.device.uuid)
                more = found.get(key)  # another instance of the same device
                found[key] = UsageRecord(
                    allocation=AllocationId(part.allocation),
                    device=DeviceUuid(held.device.uuid),
                    device_model=held.device.model,
                    mode=part.mode,
                    tenant=place.tenant,
                    project=(place.project or DEFAULT_PROJECT) if place.tenant else "",
                    queue=place.queue,
                    user=user_of(pod),
                    preemptible=pod.facts.priority < 0,
                    from_s=0.0,
                    to_s=0.0,
                    memory_mib=part.memory_mib + (more.memory_mib if more else 0),
                    core_percent=part.core_percent + (more.core_percent if more else 0),
                    allocated_gpu_s=0.0,
                    used_gpu_s=0.0,
                    memory_mib_s=0.0,
                )
        return found


def _lasting(record: UsageRecord, begin_s: float, end_s: float) -> UsageRecord:
    length_s = end_s - begin_s
    return replace(
        record,
        from_s=begin_s,
        to_s=end_s,
        allocated_gpu_s=length_s * record.core_percent / 100,
        memory_mib_s=length_s * record.memory_mib,
    )
