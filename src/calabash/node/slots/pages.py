"""Access of the agent to the control pages of an allocation (``native/page/page.h``).

A slot is a directory with two files: ``limits`` (written by the agent, read-only for the tenant) and ``usage`` (written
by the tenant). If members are known by leases, there is a third file, ``lease``, which every process locks. A tenant
can write any values to ``usage``, so they are limited to plausible ones here before they are used. Memory counters are
never written from Python; ``libcalabash-page`` does that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.versions import SLOT_PAGES
from calabash.node.slots.layout import (
    DEVICES_MAX,
    LIMITS_MAGIC,
    PROCS_MAX,
    UUID_BYTES,
    Gate,
    LimitsDeviceStruct,
    LimitsStruct,
    PagePolicy,
    PlanStruct,
    ProcState,
    UsageDeviceStruct,
    UsageProcStruct,
    UsageStruct,
)
from calabash.node.slots.names import LIMITS_FILE, USAGE_FILE
from calabash.node.slots.ordered_words import page_words

# Bounds of plausible values: 1 min of queued work, a kernel of 10 s, a million waiting launches, 256 TiB.
INFLIGHT_NS_MAX = 60_000_000_000
KERNEL_NS_MAX = 10_000_000_000
COUNT_MAX = 1_000_000
BYTES_MAX = 1 << 48


def _words(offset: int, count: int) -> slice:
    return slice(offset // 8, offset // 8 + count)


_DEVICES_OFFSET: int = UsageStruct.device.offset  # type: ignore[attr-defined]
_PROCS_OFFSET: int = UsageStruct.proc.offset  # type: ignore[attr-defined]
_DEMAND_OFFSET: int = UsageDeviceStruct.demand_ns.offset  # type: ignore[attr-defined]
_CHARGED_OFFSET: int = UsageDeviceStruct.charged_ns.offset  # type: ignore[attr-defined]
_KERNEL_OFFSET: int = UsageDeviceStruct.kernel_ns_max.offset  # type: ignore[attr-defined]
_DEVICE_BYTES = ctypes.sizeof(UsageDeviceStruct)
_MEMORY_MARK_BYTES = 16  # used_bytes and used_tag, which every transaction changes
_LIMITS_DEVICES_OFFSET: int = LimitsStruct.device.offset  # type: ignore[attr-defined]
_LIMITS_DEVICE_BYTES = ctypes.sizeof(LimitsDeviceStruct)
_RESIDUAL_OFFSET: int = LimitsDeviceStruct.residual_bytes.offset  # type: ignore[attr-defined]
_CONTEXT_OFFSET: int = LimitsDeviceStruct.context_bytes.offset  # type: ignore[attr-defined]
_UNREPORTED_OFFSET: int = LimitsDeviceStruct.unreported_ns.offset  # type: ignore[attr-defined]
_SEEN_OFFSET: int = LimitsDeviceStruct.seen_ns.offset  # type: ignore[attr-defined]
_WORD_OFFSET: int = LimitsDeviceStruct.word.offset  # type: ignore[attr-defined]
_PROC_BYTES = ctypes.sizeof(UsageProcStruct)  # the state is its first word
_SHARES = _words(UsageProcStruct.share.offset, 2 * DEVICES_MAX)  # type: ignore[attr-defined]  # used_bytes, sequence
_RESERVING = _words(UsageProcStruct.reserving_bytes.offset, DEVICES_MAX)  # type: ignore[attr-defined]
_CONTEXTS = _words(UsageProcStruct.context_bytes.offset, DEVICES_MAX)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """Time windows in which a container may launch: ``[start + k * period, end + k * period)`` from ``from_ns`` on."""

    from_ns: int = 0
    start_ns: int = 0
    end_ns: int = 0
    period_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """Counters of a container for one device, limited to plausible values. ``charged_ns`` is cumulative."""

    used_bytes: int
    peak_bytes: int
    denied_count: int  # refused requests for memory
    charged_ns: int
    inflight_ns: int  # estimated GPU time of work that is not known to be finished
    waiting_count: int  # launches that wait at the gate
    kernel_ns_max: int  # longest recent launch
    launch_count: int
    throttled_ns: int  # time for which launches waited at the gate
    demand_ns: int  # time of the last launch or attempt to launch
    busy_until_ns: int  # when the work in flight is expected to end


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcUsage:
    """A process entry as the process wrote it. ``pid`` is its pid in the namespace with inode ``pid_namespace``."""

    index: int  # of the entry in the page
    state: ProcState
    generation: int  # incremented each time the entry is taken by another process
    pid: int
    host_pid: int
    start_time: int
    pid_namespace: int
    context_count: int
    used_bytes: tuple[int, ...]
    transactions: tuple[int, ...]
    reserving_bytes: tuple[int, ...]
    context_bytes: tuple[int, ...]


def _device_offset(index: int) -> int:
    if not 0 <= index < DEVICES_MAX:
        raise IndexError(index)
    return _DEVICES_OFFSET + index * _DEVICE_BYTES


def _open_sized(path: Path, size: int) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise CalabashError(f"cannot open {path}: {error.strerror}", reason=Reason.BAD_FILE) from error
    found = os.fstat(descriptor).st_size
    if found != size:
        os.close(descriptor)
        raise CalabashError(f"{path} has {found} bytes, not {size}", reason=Reason.BAD_FILE)
    return descriptor


def _open_mapping(path: Path, size: int) -> mmap.mmap:
    descriptor = _open_sized(path, size)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class LimitsPage:
    """Mapping of ``limits``. Each group of fields has one writer: the agent writes amounts, the arbiter the gate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _open_mapping(path, ctypes.sizeof(LimitsStruct))
        self._page = LimitsStruct.from_buffer(self._map)
        self._base = ctypes.addressof(self._page)
        self._words = page_words()
        page = self._page
        if page.magic != LIMITS_MAGIC:
            raise CalabashError(f"{path} is not a limits page", reason=Reason.BAD_FILE)
        SLOT_PAGES.require(page.version, f"slot {path.parent}")
        if not 1 <= page.device_count <= DEVICES_MAX or not page.allocation:
            raise CalabashError(f"the limits page {path} is damaged", reason=Reason.BAD_FILE)
        self.allocation = AllocationId(page.allocation.decode(errors="replace"))
        self.device_count: int = page.device_count
        self.uuids = tuple(DeviceUuid(page.device[i].uuid.decode(errors="replace")) for i in range(page.device_count))

    @classmethod
    def of_slot(cls, directory: Path) -> Self:
        """Open the page of a slot directory."""
        return cls(directory / LIMITS_FILE)

    def set_group(self, group: int, name: str) -> None:
        """Set inode number and name of the control group of the allocation, before a program uses the slot."""
        self._page.name = name.encode()
        self._page.group = group

    def set_uuid(self, index: int, uuid: DeviceUuid) -> None:
        """Set the UUID of a device that was created again. Raises CalabashError(BAD_FILE) if the UUID is too long."""
        text = uuid.encode()
        if not 0 < len(text) < UUID_BYTES:
            raise CalabashError(f"device name {uuid!r} is {len(text)} bytes long", reason=Reason.BAD_FILE)
        self._page.device[index].uuid = text
        self.uuids = (*self.uuids[:index], uuid, *self.uuids[index + 1 :])

    def set_policy(self, index: int, policy: PagePolicy) -> None:
        """Set the policy of a device; the arbiter reads it at its next poll."""
        self._page.device[index].policy = policy

    def device(self, index: int) -> LimitsDeviceStruct:
        """Return the live structure of one device, for reading."""
        return self._page.device[index]

    def cap_bytes(self, index: int) -> int:
        """Return the memory limit of a device, the sum of memory on the card and spilled memory; 0: no limit."""
        device = self._page.device[index]
        return device.memory_limit_bytes + device.spill_limit_bytes

    def beat(self, now_ns: int) -> None:
        """Write the heartbeat of the arbiter."""
        self._words.store(self._base + LimitsStruct.heartbeat_ns.offset, now_ns)  # type: ignore[attr-defined]

    @property
    def heartbeat_ns(self) -> int:
        """Time of the last heartbeat of the arbiter."""
        return self._page.heartbeat_ns

    def charges_text(self, index: int) -> bytes:
        """Return bytes that change with ``unreported_ns`` and ``seen_ns``, for comparison with an earlier value."""
        start = _LIMITS_DEVICES_OFFSET + index * _LIMITS_DEVICE_BYTES + _UNREPORTED_OFFSET
        seen = _LIMITS_DEVICES_OFFSET + index * _LIMITS_DEVICE_BYTES + _SEEN_OFFSET
        return self._map[start : start + 8] + self._map[seen : seen + 8]

    def set_residual(self, index: int, residual_bytes: int) -> None:
        """Publish the residual memory of a device: held for the allocation, and not counted by the usage page."""
        self._words.store(self._device(index) + _RESIDUAL_OFFSET, max(0, min(residual_bytes, BYTES_MAX)))

    def set_context_bytes(self, index: int, context_bytes: int) -> None:
        """Publish the memory of one context on a device."""
        self._words.store(self._device(index) + _CONTEXT_OFFSET, max(0, min(context_bytes, BYTES_MAX)))

    def add_seen(self, index: int, seen_ns: int, *, unreported_ns: int) -> None:
        """Add GPU time that the driver saw, and the part of it that the usage page did not report.

        ``seen_ns`` is written first, so that a concurrent reader charges nothing twice.
        """
        self._words.add_seen(self._device(index), max(0, seen_ns), max(0, unreported_ns))

    def charges(self, index: int) -> tuple[int, int]:
        """Return ``unreported_ns`` and ``seen_ns`` of a device; the second includes all time in the first."""
        return self._words.charges(self._device(index))

    def set_gate(
        self, index: int, gate: Gate, plan: TurnPlan | None = None, *, neighbours: int = 0, wake: bool = True
    ) -> None:
        """Publish gate and plan of a device, and wake the processes that wait at the gate.

        A plan that starts later leaves the present one valid until then. ``neighbours`` is the number of other active
        containers. Without ``wake``, waiting processes read the plan when their present sleep is over, which suffices
        if nothing starts sooner than they expect.
        """
        turn = None if plan is None else PlanStruct(plan.from_ns, plan.start_ns, plan.end_ns, plan.period_ns)
        self._words.set_gate(self._device(index), gate, neighbours, turn)
        if wake:
            self.wake(index)

    def wake(self, index: int) -> None:
        """Wake every process that sleeps until the gate of a device changes."""
        self._words.wake(self._device(index) + _WORD_OFFSET)

    def _device(self, index: int) -> int:
        """Return the address of the structure of a device in this process."""
        if not 0 <= index < DEVICES_MAX:
            raise IndexError(index)
        return self._base + _LIMITS_DEVICES_OFFSET + index * _LIMITS_DEVICE_BYTES


class UsagePage:
    """Access of the agent to ``usage``. Reads are bounded, because a tenant writes the page.

    The file is read, not mapped: a tenant that truncates it must not cause SIGBUS in the agent. Only ``address`` maps
    it, for the atomic operations of ``libcalabash-page``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._mapped: UsageStruct | None = None
        self._descriptor = _open_sized(path, ctypes.sizeof(UsageStruct))

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)

    @classmethod
    def of_slot(cls, directory: Path) -> Self:
        """Open the page of a slot directory."""
        return cls(directory / USAGE_FILE)

    def require_intact(self) -> None:
        """Raise CalabashError(BAD_FILE) if the tenant has truncated or extended the file."""
        size, found = ctypes.sizeof(UsageStruct), os.fstat(self._descriptor).st_size
        if found != size:
            raise CalabashError(f"{self.path} has {found} bytes, not {size}", reason=Reason.BAD_FILE)

    @property
    def address(self) -> int:
        """Address of the mapped page, for ``libcalabash-page``. Raises CalabashError if the file has the wrong size."""
        self.require_intact()
        size = ctypes.sizeof(UsageStruct)
        if self._mapped is None:
            self._map = mmap.mmap(self._descriptor, size)
            self._mapped = UsageStruct.from_buffer(self._map)
        return ctypes.addressof(self._mapped)

    @property
    def _page(self) -> UsageStruct:
        """The mapped page; tests write to it in the role of the tenant."""
        assert self.address
        assert self._mapped is not None
        return self._mapped

    def _read(self, offset: int, size: int) -> bytes:
        """Read bytes of the page; truncated ones read as zeros, so that such a tenant uses nothing."""
        return os.pread(self._descriptor, size, offset).ljust(size, b"\0")

    def device(self, index: int) -> DeviceUsage:
        """Return the counters of a device, limited to plausible values."""
        raw = UsageDeviceStruct.from_buffer_copy(self._read(_device_offset(index), _DEVICE_BYTES))
        return DeviceUsage(
            used_bytes=min(raw.used_bytes, BYTES_MAX),
            peak_bytes=min(raw.peak_bytes, BYTES_MAX),
            denied_count=raw.denied_count,
            charged_ns=raw.charged_ns,
            inflight_ns=min(raw.inflight_ns, INFLIGHT_NS_MAX),
            waiting_count=min(raw.waiting_count, COUNT_MAX),
            kernel_ns_max=min(raw.kernel_ns_max, KERNEL_NS_MAX),
            launch_count=raw.launch_count,
            throttled_ns=raw.throttled_ns,
            demand_ns=raw.demand_ns,
            busy_until_ns=raw.busy_until_ns,
        )

    def demand_ns(self, index: int) -> int:
        """Return the time of the last launch or attempt to launch. It reads 8 bytes only, so it may be called often."""
        return int.from_bytes(self._read(_device_offset(index) + _DEMAND_OFFSET, 8), "little")

    def demand_place(self, index: int) -> tuple[int, int]:
        """Return the file descriptor of this page, and the offset of ``demand_ns`` in it, for readers of many pages."""
        return self._descriptor, _device_offset(index) + _DEMAND_OFFSET

    def charged_ns(self, index: int) -> int:
        """Return the cumulative GPU time that the container reports."""
        return int.from_bytes(self._read(_device_offset(index) + _CHARGED_OFFSET, 8), "little")

    def take_kernel_ns_max(self, index: int) -> int:
        """Return the longest kernel since the last call, in ns, and reset it."""
        offset = _device_offset(index) + _KERNEL_OFFSET
        longest = int.from_bytes(self._read(offset, 8), "little")
        with suppress(OSError):  # the tenant has made a hole in its page and filled the file system
            os.pwrite(self._descriptor, bytes(8), offset)
        return min(longest, KERNEL_NS_MAX)

    def memory_mark(self, devices: int) -> tuple[bytes, ...]:
        """Return bytes that change whenever a process of the container reserves or frees memory of one of its devices."""
        return tuple(self._read(_device_offset(index), _MEMORY_MARK_BYTES) for index in range(devices))

    def procs(self) -> list[ProcUsage]:
        """Return all process entries that are not free, by index."""
        table = _process_table()
        found = os.preadv(self._descriptor, [table], _PROCS_OFFSET)
        if found < len(table):  # truncated bytes read as zeros
            table[found:] = bytes(len(table) - found)
        with memoryview(table) as whole, whole.cast("I") as words:
            states = words[:: _PROC_BYTES // 4].tolist()
        if not any(states):
            return []
        taken = [index for index, state in enumerate(states) if state]
        return [_proc(i, bytes(table[i * _PROC_BYTES : (i + 1) * _PROC_BYTES])) for i in taken]

    def proc(self, index: int) -> ProcUsage:
        """Return a process entry, limited to plausible values; an unknown state reads as TAKEN."""
        return _proc(index, self._read(_PROCS_OFFSET + index * _PROC_BYTES, _PROC_BYTES))


_buffers = threading.local()


def _process_table() -> bytearray:
    """Return this thread's buffer for the process entries of a page; at 1 MiB it is too large to allocate for each call."""
    table: bytearray | None = getattr(_buffers, "table", None)
    if table is None:
        table = _buffers.table = bytearray(PROCS_MAX * _PROC_BYTES)
    return table


def _proc(index: int, data: bytes) -> ProcUsage:
    raw = UsageProcStruct.from_buffer_copy(data)
    words = memoryview(data).cast("Q")  # avoids an object for each number: a page may be full of entries
    shares = words[_SHARES].tolist()
    return ProcUsage(
        index=index,
        state=ProcState(raw.state) if raw.state <= ProcState.LIVE else ProcState.TAKEN,
        generation=raw.generation,
        pid=raw.pid,
        host_pid=raw.host_pid,
        start_time=raw.start_time,
        pid_namespace=raw.pid_namespace,
        context_count=min(raw.context_count, COUNT_MAX),
        used_bytes=_amounts(shares[0::2]),
        transactions=tuple(shares[1::2]),
        reserving_bytes=_amounts(words[_RESERVING].tolist()),
        context_bytes=_amounts(words[_CONTEXTS].tolist()),
    )


def _amounts(values: list[int]) -> tuple[int, ...]:
    return tuple(values) if max(values) <= BYTES_MAX else tuple(min(value, BYTES_MAX) for value in values)
