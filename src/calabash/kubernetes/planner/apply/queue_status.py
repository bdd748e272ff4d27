"""Status of queue objects: devices in use, guaranteed and borrowed, numbers of running and waiting pods, and past use.

Past use changes all the time. It is written with other changes, and by itself only when it has changed by ``PAST_CHANGE_RATIO``
and ``PAST_EVERY_S`` have passed. The next planner begins with what was written, and counts the pods that run from that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from calabash.adapters.clock import Clock
from calabash.adapters.kube import KubeClient, is_final
from calabash.adapters.kube.objects.resources import QUEUE, KubeQueueStatus
from calabash.kubernetes.planner.state.component import COMPONENT
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.kubernetes.planner.watch.mirrors import Mirrors
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.sched import WHOLE_MILLI

log = structlog.get_logger(__name__)

STATUS_EVERY_S = 3.0
PAST_EVERY_S = 60.0
PAST_CHANGE_RATIO = 0.01
_WAITS = frozenset((Stage.ASIDE, Stage.WAITING, Stage.PLACED))


class _Count:
    __slots__ = ("memory_mib", "running", "waiting")

    def __init__(self) -> None:
        self.running = self.waiting = self.memory_mib = 0


def queue_statuses(store: PodStore, now_s: float = 0.0) -> dict[str, KubeQueueStatus]:
    """Return the status of each queue in the scheduler's tree; a parent has the sums of the queues below it.

    Args:
        now_s: the present time, up to which past use is counted.
    """
    store.scheduler.scheduler.count_use(now_s)
    tree = store.scheduler.scheduler.tree
    form = tree.form
    counts = [_Count() for _ in form.paths]
    for entry in store.entries.values():
        number = form.index.get(entry.bundle.request.queue) if entry.bundle else None
        if number is None:
            continue
        waits = entry.stage in _WAITS
        memory_mib = 0 if waits else _memory_mib(store, entry.id)
        for level in form.paths[number]:
            counts[level].waiting += waits
            counts[level].running += not waits
            counts[level].memory_mib += memory_mib
    shares = tree.shares()
    guaranteed = shares.guaranteed
    at = datetime.fromtimestamp(int(now_s), UTC).isoformat().replace("+00:00", "Z")
    found = {}
    for name, number in form.index.items():
        if number:
            used, mine = tree.used(name).gpu_milli, guaranteed[number][0]
            found[name] = KubeQueueStatus(
                allocated=_devices(used),
                guaranteed=_devices(mine),
                borrowed=_devices(max(0.0, used - mine)),
                pending=_devices(tree.waiting(name).gpu_milli),
                memory_mib=counts[number].memory_mib,
                waiting=counts[number].waiting,
                running=counts[number].running,
            )
            if tree.half_life_s > 0:
                found[name] = msgspec.structs.replace(
                    found[name],
                    half_life_seconds=tree.half_life_s,
                    fair_share=_devices(shares.fair[number][0]),
                    effective_weight=round(tree.effective_weight(name), 4),
                    past_use_device_seconds=round(tree.past_of(name), 3),
                    past_use_at=at,
                )
    return found


class QueueStatusThread:
    """Thread that writes the status of all queues while this planner leads.

    Args:
        lock: guards the core.
        mirrors: ``mirrors.core`` is the core, or None while another planner leads.
        every_s: seconds between writes.
        clock: the clock of the core.
    """

    def __init__(
        self, client: KubeClient, lock: threading.RLock, mirrors: Mirrors, every_s: float, clock: Clock
    ) -> None:
        self._clock = clock
        self._statuses = QueueStatuses(client)
        self._lock = lock
        self._mirrors = mirrors
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-queues", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._statuses.write(self._wanted())
            except Exception:
                log.exception("the status of queues was not written")

    def _wanted(self) -> dict[str, KubeQueueStatus]:
        with self._lock:
            core = self._mirrors.core
            if core is None:
                return {}
            found, queues = queue_statuses(core.store, self._clock.now_s()), core.queues
            wanted = {name: status for name, status in found.items() if name in queues.own}
            for name, error in queues.too_deep.items():
                message = f"{error.message}; hint: {error.hint}"
                wanted[name] = msgspec.structs.replace(found.get(name, KubeQueueStatus()), message=message)
            return wanted


class QueueStatuses:
    """Writes each queue status that differs from the one last written.

    Args:
        now_s: monotonic clock in seconds.
    """

    def __init__(self, client: KubeClient, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now_s = now_s
        self._written_at_s: dict[str, float] = {}
        self._written: dict[str, KubeQueueStatus] = {}

    def write(self, wanted: Mapping[str, KubeQueueStatus]) -> None:
        """Write the statuses that differ from those last written; a failed write is repeated at the next call.

        Args:
            wanted: the status of each queue, by name. While another planner leads, this must be empty: all statuses are
                then written again when this planner leads next.
        """
        for name in [n for n in self._written if n not in wanted]:
            del self._written[name]
        for name, status in wanted.items():
            now_s, before = self._now_s(), self._written.get(name)
            if before is not None and not _differs(before, status, now_s - self._written_at_s.get(name, now_s)):
                continue
            self._written_at_s[name] = now_s
            try:
                self._client.patch(
                    QUEUE,
                    name,
                    body={"status": _all_fields(status)},
                    style="apply",
                    subresource="status",
                    field_manager=COMPONENT,
                    force=True,
                )
            except CalabashError as error:
                log.info("the status of a queue was not written", queue=name, error=error.message)
                if is_final(error):
                    self._written[name] = status  # written again when the status changes
            else:
                self._written[name] = status


def _differs(before: KubeQueueStatus, now: KubeQueueStatus, since_s: float) -> bool:
    """Return True if a status is to be written, ``since_s`` seconds after the one before."""
    if _without_past(before) != _without_past(now):
        return True
    was, has = before.past_use_device_seconds or 0.0, now.past_use_device_seconds or 0.0
    return since_s >= PAST_EVERY_S and abs(has - was) > PAST_CHANGE_RATIO * max(was, 1.0)


def _without_past(status: KubeQueueStatus) -> KubeQueueStatus:
    return msgspec.structs.replace(
        status, past_use_device_seconds=None, past_use_at="", effective_weight=None, fair_share=None
    )


def _all_fields(status: KubeQueueStatus) -> dict[str, Any]:
    """Return all fields of a status, including zeros, so that ``kubectl get`` shows 0 instead of an empty column.

    An empty message, and past use if it does not count, are left out, because older versions of the CRD have no such fields.
    """
    fields = {field.encode_name: getattr(status, field.name) for field in msgspec.structs.fields(status)}
    return {name: value for name, value in fields.items() if value not in (None, "")}


def _memory_mib(store: PodStore, allocation: AllocationId) -> int:
    """Return the device memory in MiB that the pod with this allocation holds; 0 if it holds none.

    The amount is that of its slices. For whole devices it is all memory of the devices.
    """
    running = store.scheduler.scheduler.registry.running(allocation)
    if running is None:
        return 0
    shape, devices = running.request.shape, running.placement.devices
    if not shape.whole:
        return shape.gpu_memory_mib * len(devices)
    node = store.scheduler.nodes.get(NodeName(running.node))
    return sum(node.devices[i].device.memory_mib for i in devices) if node else 0


def _devices(milli: float) -> float:
    return round(milli / WHOLE_MILLI, 3)
