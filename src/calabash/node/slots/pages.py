"""The control pages of an allocation: the agent's side of ``native/page/page.h``.

A slot is a directory with two files: ``limits`` (ours, read-only for the tenant) and ``usage`` (written by the tenant,
a hint for us); a pool that knows its members by leases adds ``lease``, locked by every process. Whatever comes out of
``usage`` was written by a tenant: it is bounded here, before anybody computes with it. Memory counters are never
written from Python; that is the work of ``libcalabash-page``.
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
from calabash.node.slots.layout import (
    DEVICES_MAX,
    LIMITS_MAGIC,
    PAGE_PLAIN,
    PAGE_VERSION,
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

# Nothing honest is larger: a minute of queued work, a kernel of ten seconds, a million waiting launches, 256 TiB.
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
_MEMORY_MARK_BYTES = 16  # used_bytes and used_tag, the pair that every transaction moves
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
    """When a container may launch: ``[start + k * period, end + k * period)`` from ``from_ns`` on."""

    from_ns: int = 0
    start_ns: int = 0
    end_ns: int = 0
    period_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """One look at a container's use of one device; every value is within its bound. ``charged_ns`` is cumulative."""

    used_bytes: int
    peak_bytes: int
    denied_count: int
    charged_ns: int
    inflight_ns: int
    waiting_count: int
    kernel_ns_max: int
    launch_count: int
    throttled_ns: int
    demand_ns: int
    busy_until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcUsage:
    """One process of the allocation, as it says itself. ``pid`` counts in namespace ``pid_namespace``."""

    index: int
    state: ProcState
    generation: int
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
    """The agent's mapping of ``limits``. One writer per field group: the pool writes amounts, the arbiter the gate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _open_mapping(path, ctypes.sizeof(LimitsStruct))
        self._page = LimitsStruct.from_buffer(self._map)
        self._base = ctypes.addressof(self._page)
        self._words = page_words()
        page = self._page
        if (
            page.magic != LIMITS_MAGIC
            or not PAGE_PLAIN <= page.version <= PAGE_VERSION
            or not 1 <= page.device_count <= DEVICES_MAX
            or not page.allocation
        ):
            known = f"{PAGE_PLAIN} to {PAGE_VERSION}"
            raise CalabashError(f"{path} is not a limits page of version {known}", reason=Reason.BAD_FILE)
        self.allocation = AllocationId(page.allocation.decode(errors="replace"))
        self.device_count: int = page.device_count
        self.uuids = tuple(DeviceUuid(page.device[i].uuid.decode(errors="replace")) for i in range(page.device_count))

    @classmethod
    def of_slot(cls, directory: Path) -> Self:
        """Open the page of a slot directory."""
        return cls(directory / LIMITS_FILE)

    def set_group(self, group: int, name: str) -> None:
        """Name the control group of the allocation by its inode number and its name; no program uses the slot yet."""
        self._page.name = name.encode()
        self._page.group = group

    def set_uuid(self, index: int, uuid: DeviceUuid) -> None:
        """The device was made again under another name; nobody uses the slot."""
        text = uuid.encode()
        if not 0 < len(text) < UUID_BYTES:
            raise CalabashError(f"device name {uuid!r} is {len(text)} bytes long", reason=Reason.BAD_FILE)
        self._page.device[index].uuid = text
        self.uuids = (*self.uuids[:index], uuid, *self.uuids[index + 1 :])

    def set_policy(self, index: int, policy: PagePolicy) -> None:
        """How the arbiter is to treat it from its next look on."""
        self._page.device[index].policy = policy

    def device(self, index: int) -> LimitsDeviceStruct:
        """The live structure of one device, to read from."""
        return self._page.device[index]

    def cap_bytes(self, index: int) -> int:
        """What the container may have of a device in all, on the card or beyond it; 0: not capped."""
        device = self._page.device[index]
        return device.memory_limit_bytes + device.spill_limit_bytes

    def beat(self, now_ns: int) -> None:
        """A sign of life of the arbiter."""
        self._words.store(self._base + LimitsStruct.heartbeat_ns.offset, now_ns)  # type: ignore[attr-defined]

    @property
    def heartbeat_ns(self) -> int:
        """When the arbiter last showed itself."""
        return self._page.heartbeat_ns

    def charges_text(self, index: int) -> bytes:
        """Return bytes that change with ``unreported_ns`` and ``seen_ns``, to be compared with those of another look."""
        start = _LIMITS_DEVICES_OFFSET + index * _LIMITS_DEVICE_BYTES + _UNREPORTED_OFFSET
        seen = _LIMITS_DEVICES_OFFSET + index * _LIMITS_DEVICE_BYTES + _SEEN_OFFSET
        return self._map[start : start + 8] + self._map[seen : seen + 8]

    def set_residual(self, index: int, residual_bytes: int) -> None:
        """Publish what the device holds for this allocation beyond its ledger."""
        self._words.store(self._device(index) + _RESIDUAL_OFFSET, max(0, min(residual_bytes, BYTES_MAX)))

    def set_context_bytes(self, index: int, context_bytes: int) -> None:
        """Publish what one context costs on this device."""
        self._words.store(self._device(index) + _CONTEXT_OFFSET, max(0, min(context_bytes, BYTES_MAX)))

    def add_seen(self, index: int, seen_ns: int, *, unreported_ns: int) -> None:
        """Publish GPU time that the driver saw, and how much of it the usage page did not tell; in this order, so that
        a reader who looks in between charges nothing twice."""
        self._words.add_seen(self._device(index), max(0, seen_ns), max(0, unreported_ns))

    def charges(self, index: int) -> tuple[int, int]:
        """``unreported_ns`` and ``seen_ns``, which belong together."""
        return self._words.charges(self._device(index))

    def set_gate(
        self, index: int, gate: Gate, plan: TurnPlan | None = None, *, neighbours: int = 0, wake: bool = True
    ) -> None:
        """Publish how to run from now on, and wake whoever sleeps at the gate.

        A plan that starts later leaves the one in force valid until then. Without ``wake`` sleepers see it when their
        present sleep is over: enough when nothing starts sooner than they believe.
        """
        turn = None if plan is None else PlanStruct(plan.from_ns, plan.start_ns, plan.end_ns, plan.period_ns)
        self._words.set_gate(self._device(index), gate, neighbours, turn)
        if wake:
            self.wake(index)

    def wake(self, index: int) -> None:
        """Wake every process that sleeps on the word of a device."""
        self._words.wake(self._device(index) + _WORD_OFFSET)

    def _device(self, index: int) -> int:
        """Where the structure of a device lies in this process."""
        if not 0 <= index < DEVICES_MAX:
            raise IndexError(index)
        return self._base + _LIMITS_DEVICES_OFFSET + index * _LIMITS_DEVICE_BYTES


class UsagePage:
    """The agent's view of ``usage``; reads are bounded, because a tenant wrote them.

    The file is read, not mapped: a tenant that cuts it short must not raise SIGBUS in the agent. Only ``address`` maps
    it, for the atomics of ``libcalabash-page``.
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
        """Raises CalabashError(BAD_FILE) when its tenant has cut or stretched it."""
        size, found = ctypes.sizeof(UsageStruct), os.fstat(self._descriptor).st_size
        if found != size:
            raise CalabashError(f"{self.path} has {found} bytes, not {size}", reason=Reason.BAD_FILE)

    @property
    def address(self) -> int:
        """Where the page lies in this process, for ``libcalabash-page``. Raises CalabashError when it was cut short."""
        self.require_intact()
        size = ctypes.sizeof(UsageStruct)
        if self._mapped is None:
            self._map = mmap.mmap(self._descriptor, size)
            self._mapped = UsageStruct.from_buffer(self._map)
        return ctypes.addressof(self._mapped)

    @property
    def _page(self) -> UsageStruct:
        """The mapped page; tests play the tenant through it."""
        assert self.address
        assert self._mapped is not None
        return self._mapped

    def _read(self, offset: int, size: int) -> bytes:
        """What was cut off reads as zeros: such a tenant uses nothing and gets nothing."""
        return os.pread(self._descriptor, size, offset).ljust(size, b"\0")

    def device(self, index: int) -> DeviceUsage:
        """One bounded look at a device's counters."""
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
        """When the container last launched, or last waited to: the cheapest look, for those who look often."""
        return int.from_bytes(self._read(_device_offset(index) + _DEMAND_OFFSET, 8), "little")

    def demand_place(self, index: int) -> tuple[int, int]:
        """Return a descriptor, open as long as this page, and the offset of ``demand_ns`` behind it, for many short looks."""
        return self._descriptor, _device_offset(index) + _DEMAND_OFFSET

    def charged_ns(self, index: int) -> int:
        """Cumulative GPU time, as the container tells it."""
        return int.from_bytes(self._read(_device_offset(index) + _CHARGED_OFFSET, 8), "little")

    def take_kernel_ns_max(self, index: int) -> int:
        """The longest kernel since the last call."""
        offset = _device_offset(index) + _KERNEL_OFFSET
        longest = int.from_bytes(self._read(offset, 8), "little")
        with suppress(OSError):  # a tenant has made a hole in its page and used up the room
            os.pwrite(self._descriptor, bytes(8), offset)
        return min(longest, KERNEL_NS_MAX)

    def memory_mark(self, devices: int) -> tuple[bytes, ...]:
        """Return bytes that change whenever a process of the container reserves or frees memory of one of its devices."""
        return tuple(self._read(_device_offset(index), _MEMORY_MARK_BYTES) for index in range(devices))

    def procs(self) -> list[ProcUsage]:
        """Every entry that is not free, in order of index."""
        table = _process_table()
        found = os.preadv(self._descriptor, [table], _PROCS_OFFSET)
        if found < len(table):  # what was cut off reads as zeros
            table[found:] = bytes(len(table) - found)
        with memoryview(table) as whole, whole.cast("I") as words:
            states = words[:: _PROC_BYTES // 4].tolist()
        if not any(states):
            return []
        taken = [index for index, state in enumerate(states) if state]
        return [_proc(i, bytes(table[i * _PROC_BYTES : (i + 1) * _PROC_BYTES])) for i in taken]

    def proc(self, index: int) -> ProcUsage:
        """One bounded look at a process entry; an unknown state reads as taken."""
        return _proc(index, self._read(_PROCS_OFFSET + index * _PROC_BYTES, _PROC_BYTES))


_buffers = threading.local()


def _process_table() -> bytearray:
    """Return the buffer of this thread for the process entries of one page: it is a mebibyte, too large to make it anew."""
    table: bytearray | None = getattr(_buffers, "table", None)
    if table is None:
        table = _buffers.table = bytearray(PROCS_MAX * _PROC_BYTES)
    return table


def _proc(index: int, data: bytes) -> ProcUsage:
    raw = UsageProcStruct.from_buffer_copy(data)
    words = memoryview(data).cast("Q")  # a page may be full of entries: no object for each number
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
