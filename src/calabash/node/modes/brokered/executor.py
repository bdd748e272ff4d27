"""Executor of mode brokered: starts a worker host in the slot of each allocation.

The worker host starts a worker for every program of the tenant. The worker uses the device, under the same library, limits and
accounting as the programs of any other slice.

A worker host lives as long as its client (the process that asked for the allocation) or a program that it serves; for a
standing allocation until the allocation is released. In a cluster the client is the sandbox of the pod. If a worker host
dies, its allocation is ended, because its programs have lost their state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from calabash.adapters.gpu.library import remote_library_dir
from calabash.adapters.host.process_ends import Endings
from calabash.adapters.host.processes import Process, alive
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.modes.brokered.host import SOCKET_FILE, WorkerHost
from calabash.node.modes.brokered.images import ImageFiles
from calabash.node.modes.brokered.isolation import directory_of, enclosure_of, program_edits
from calabash.node.modes.brokered.records import RunningHost, WorkerHostFile
from calabash.node.modes.brokered.users import FreeUsers, WorkerUser
from calabash.node.modes.protocol import NodeTools
from calabash.node.modes.vgpu import VgpuExecutor
from calabash.node.slots.content import SlotDevice
from calabash.node.slots.names import LEASE_FILE, WORKERS_FILE
from calabash.sharing import brokered
from calabash.sharing.protocol import Edits

UNUSED_NS = 10_000_000_000  # how long a host without a known client waits for its first program
BOUND_NS = 5_000_000_000  # interval at which the size of the code image files is limited
WORKER_DIED = "worker_died"

log = structlog.get_logger(__name__)


class BrokeredExecutor(VgpuExecutor):
    """Executor of slices that workers use for the tenant's programs, limited by the same library as vGPU slices."""

    name = brokered.MODE.name
    standing = True

    def __init__(self, tools: NodeTools) -> None:
        super().__init__(tools)
        self._lock = threading.Lock()
        self._hosts: dict[AllocationId, WorkerHost] = {}
        self._ended_hosts: list[WorkerHost] = []  # ended, but their directories and zombies are not removed yet
        self._endings = Endings()
        self._records = WorkerHostFile(tools.home / WORKERS_FILE)
        self._users = FreeUsers(tools.workers, fallback=tools.home / "worker-users")
        self._images = ImageFiles(tools.home / "images")
        self._bounded_ns = 0

    def start(self) -> None:
        """Do nothing: the executor of mode vgpu learns the cost of contexts."""

    def poll(self) -> None:
        """Do nothing: the executor of mode vgpu corrects the memory counters of all slots."""

    def prepare(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Return the limits of the slot.

        Raises MODE_CONFLICT if the node starts no workers, and BAD_FILE if the worker program has not been built.
        """
        if self._tools.workers is None:
            raise CalabashError(
                f"this node starts no workers, so it cannot serve mode {self.name}",
                reason=Reason.MODE_CONFLICT,
                hint="use a pool of this machine: calabash run --isolation brokered",
            )
        if not (remote_library_dir() / "calabash-worker").is_file():
            raise CalabashError(
                f"calabash-worker has not been built, so mode {self.name} cannot be served",
                reason=Reason.BAD_FILE,
                hint="build it with: make native",
            )
        return super().prepare(record)

    def provide(self, record: AllocationRecord) -> tuple[SlotDevice, ...]:
        """Assign a directory and a user to the allocation's worker host, which ``launch`` starts.

        Raises:
            CalabashError: as ``prepare``; NO_CAPACITY: all users for workers are taken.
        """
        devices = self.prepare(record)
        with self._lock:
            taken = {host.user for host in (*self._hosts.values(), *self._ended_hosts)}
            self._hosts[record.id] = self._host(record, self._users.one(taken))
        return devices

    def slot_user(self, record: AllocationRecord) -> int:
        host = self._hosts.get(record.id)
        return host.user if host is not None else record.uid

    def launch(self, record: AllocationRecord) -> None:
        host = self._hosts.get(record.id)
        if host is None or host.process is not None:
            return  # the host runs already, or the allocation has been released
        slot = self._tools.allocations.slot_of(record.id)
        lease = slot / LEASE_FILE
        host.used_ns = time.monotonic_ns()
        images = self._images.open(uid=record.uid, tenant=record.request.tenant)
        try:
            host.start(
                enclosure_of(self._tools, record, slot, user=host.user),
                tenant=record.uid,
                lease=lease if lease.exists() else None,
                images=images,
                join=lambda process: self._tools.allocations.join(record.id, process),
            )
        finally:
            if images is not None:
                images.close()
        self._write_records()

    def edits(self, record: AllocationRecord) -> Edits:
        return program_edits(self._directory(record.id) / SOCKET_FILE, record.placement.slices)

    def leave(self, record: AllocationRecord) -> None:
        """End the allocation's worker host. ``poll_processes`` removes its directory and reaps the process."""
        with self._lock:
            host = self._hosts.pop(record.id, None)
            if host is None:
                return
            died = host.found_dead()
            host.end()
            self._ended_hosts.append(host)
        if died:
            self._report_death(host)

    def recover(self, held: Sequence[AllocationRecord]) -> None:
        records = {record.id: record for record in held}
        for running in self._records.read():
            process = Process(pid=running.pid, start_time=running.start_time)
            record = records.get(AllocationId(running.allocation))
            host = WorkerHost(
                AllocationId(running.allocation),
                directory_of(self._tools.home, running.name or running.allocation),
                client=_client_of(record) if record is not None else None,
                user=WorkerUser(uid=running.user),  # the host process holds the lock of its user
                name=running.name,
                standing=record is not None and record.request.standing,
            )
            host.adopt(process)
            if record is None or not alive(process):
                host.end()
                self._ended_hosts.append(host)
            else:
                host.used_ns = time.monotonic_ns()
                self._hosts[record.id] = host
        for record in held:
            if record.id not in self._hosts:
                self._tools.allocations.end(record.id, WORKER_DIED, "the worker host exited while no pool ran")

    def poll_processes(self) -> None:
        with self._lock:
            hosts, ended = list(self._hosts.values()), list(self._ended_hosts)
        for host in hosts:
            self._watch_processes(host)
        self._endings.poll()
        for host in hosts:
            if host.process is not None:
                host.listen_to()
                self._check_host(host)
        for host in ended:
            self._clear(host)
        if hosts and time.monotonic_ns() - self._bounded_ns > BOUND_NS:
            self._images.bound()
            self._bounded_ns = time.monotonic_ns()

    def needs(self, allocation: AllocationId) -> bool:
        host = self._hosts.get(allocation)
        return host is None or host.standing or host.client is None or alive(host.client) or host.serves()

    def stop(self) -> None:
        """Release the worker hosts, which keep running; the next pool adopts them."""
        for host in list(self._hosts.values()):
            host.release()
        self._endings.close()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _watch_processes(self, host: WorkerHost) -> None:
        for process in (host.process, host.client):
            if process is not None:
                self._endings.watch(process)

    def _check_host(self, host: WorkerHost) -> None:
        assert host.process is not None
        if self._endings.ended(host.process):
            with self._lock:
                died = host.found_dead()
            if died:  # without the lock, because ending an allocation takes the agent's lock
                self._report_death(host)
        elif not host.ended and not self._needed(host):
            host.end()
            self._end(host)

    def _needed(self, host: WorkerHost) -> bool:
        if self._tools.allocations.is_abandoned(host.allocation):
            return False
        if host.standing or (host.client is not None and not self._endings.ended(host.client)) or host.serves():
            host.used_ns = time.monotonic_ns()
            return True
        return host.client is None and time.monotonic_ns() - host.used_ns < UNUSED_NS

    def _report_death(self, host: WorkerHost) -> None:
        """End the allocation of a host that died. No event is emitted if the allocation was ending or its pod is over."""
        if self._tools.allocations.is_abandoned(host.allocation):
            self._end(host)
        elif not self._tools.allocations.is_ending(host.allocation):
            why = "the worker host has died"
            self._tools.events.emit(WORKER_DIED, reason=WORKER_DIED, allocation=host.allocation, message=why)
            self._tools.allocations.end(host.allocation, WORKER_DIED, why)

    def _end(self, host: WorkerHost) -> None:
        """End the allocation of a host that no client or program needs."""
        self._tools.allocations.end(host.allocation, "ended", "no client or program uses its workers any more")

    def _clear(self, host: WorkerHost) -> None:
        if not host.reap():
            return
        for process in (host.process, host.client):
            if process is not None:
                self._endings.unwatch(process)
        with self._lock:
            self._ended_hosts.remove(host)
            replaced = self._hosts.get(host.allocation)
            host.close(keep_directory=replaced is not None and replaced.socket_path == host.socket_path)
        self._write_records()

    def _host(self, record: AllocationRecord, user: WorkerUser) -> WorkerHost:
        return WorkerHost(
            record.id,
            self._directory(record.id),
            client=_client_of(record),
            user=user,
            name=self._tools.allocations.slot_of(record.id).name,
            standing=record.request.standing,
        )

    def _directory(self, allocation: AllocationId) -> Path:
        return directory_of(self._tools.home, self._tools.allocations.slot_of(allocation).name)

    def _write_records(self) -> None:
        self._records.write(self._running)

    def _running(self) -> list[RunningHost]:
        with self._lock:
            hosts = list(self._hosts.values())
        return [_running(host, host.process) for host in hosts if host.process is not None]


def _running(host: WorkerHost, process: Process) -> RunningHost:
    return RunningHost(
        allocation=host.allocation, pid=process.pid, start_time=process.start_time, user=host.user, name=host.name
    )


def _client_of(record: AllocationRecord) -> Process | None:
    if record.client_pid <= 0:
        return None
    return Process(pid=record.client_pid, start_time=record.client_start_time)


def open_mode(tools: NodeTools) -> BrokeredExecutor:
    """Return the executor of mode brokered."""
    return BrokeredExecutor(tools)
