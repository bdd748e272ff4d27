"""Layout of the control pages: the structures of ``native/page/page.h``, field by field.

The module contains structures, constants and enumerations only. A test compiles the header and compares every offset
and size. The header documents the meaning and the writer of each field; module ``pages`` reads and writes the fields.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import ClassVar

from calabash.model.versions import SLOT_PAGES

LIMITS_MAGIC = 0x314D494C42414C43
USAGE_MAGIC = 0x3147535542414C43
PAGE_VERSION = SLOT_PAGES.newest
PAGE_PLAIN = 1  # version of pages without spill
DEVICES_MAX = 16
PROCS_MAX = 1024
KERNELS_MAX = 64

LIMITS_LEASELESS = 1  # in LimitsStruct.flags

UUID_BYTES = 48
ALLOCATION_BYTES = 64
NAME_BYTES = 40


class PagePolicy(IntEnum):
    """``enum cb_policy``: policy of the compute share of a slice."""

    NONE = 0
    FIXED = 1
    BURST = 2
    BEST_EFFORT = 3
    METERED = 4


class Gate(IntEnum):
    """``enum cb_gate``: how the shim enforces the compute share now."""

    OPEN = 0
    RATE = 1
    TURN = 2


class ProcState(IntEnum):
    """``enum cb_proc_state``: state of a process entry of the usage page."""

    FREE = 0
    TAKEN = 1
    LIVE = 2


class PlanStruct(ctypes.Structure):
    """``struct cb_plan``: time windows of a slice."""

    _fields_: ClassVar = [
        ("from_ns", ctypes.c_uint64),
        ("start_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    ]
    from_ns: int
    start_ns: int
    end_ns: int
    period_ns: int


class LimitsDeviceStruct(ctypes.Structure):
    """``struct cb_limits_device``: limits of a slice of one device."""

    _fields_: ClassVar = [
        ("uuid", ctypes.c_char * UUID_BYTES),
        ("memory_limit_bytes", ctypes.c_uint64),
        ("residual_bytes", ctypes.c_uint64),
        ("core_percent", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("gate", ctypes.c_uint32),
        ("word", ctypes.c_uint32),
        ("neighbours", ctypes.c_uint32),
        ("unreported_ns", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
        ("plan", PlanStruct),
        ("previous", PlanStruct),
        ("seen_ns", ctypes.c_uint64),
        ("spill_limit_bytes", ctypes.c_uint64),
        ("resident_limit_bytes", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 8),
    ]
    uuid: bytes
    memory_limit_bytes: int
    residual_bytes: int
    core_percent: int
    policy: int
    priority: int
    gate: int
    word: int
    neighbours: int
    unreported_ns: int
    context_bytes: int
    plan: PlanStruct
    previous: PlanStruct
    seen_ns: int
    spill_limit_bytes: int
    resident_limit_bytes: int


class LimitsStruct(ctypes.Structure):
    """``struct cb_limits``: the limits page."""

    _fields_: ClassVar = [
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("device_count", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("heartbeat_ns", ctypes.c_uint64),
        ("allocation", ctypes.c_char * ALLOCATION_BYTES),
        ("group", ctypes.c_uint64),
        ("name", ctypes.c_char * NAME_BYTES),
        ("reserved", ctypes.c_char * (4096 - 144)),
        ("device", LimitsDeviceStruct * DEVICES_MAX),
    ]
    magic: int
    version: int
    device_count: int
    generation: int
    flags: int
    heartbeat_ns: int
    allocation: bytes
    group: int
    name: bytes
    device: ctypes.Array[LimitsDeviceStruct]


class UsageDeviceStruct(ctypes.Structure):
    """``struct cb_usage_device``: counters of the allocation's use of one device."""

    _fields_: ClassVar = [
        ("used_bytes", ctypes.c_uint64),
        ("used_tag", ctypes.c_uint64),
        ("denied_count", ctypes.c_uint64),
        ("peak_bytes", ctypes.c_uint64),
        ("reserved0", ctypes.c_uint64 * 12),
        ("charged_ns", ctypes.c_uint64),
        ("inflight_ns", ctypes.c_uint64),
        ("inflight_count", ctypes.c_uint32),
        ("waiting_count", ctypes.c_uint32),
        ("kernel_ns_max", ctypes.c_uint64),
        ("launch_count", ctypes.c_uint64),
        ("throttled_ns", ctypes.c_uint64),
        ("demand_ns", ctypes.c_uint64),
        ("bucket_ns", ctypes.c_int64),
        ("bucket_time_ns", ctypes.c_uint64),
        ("busy_until_ns", ctypes.c_uint64),
        ("settled_ns", ctypes.c_uint64),
        ("reserved1", ctypes.c_uint64 * 5),
    ]
    used_bytes: int
    denied_count: int
    peak_bytes: int
    charged_ns: int
    inflight_ns: int
    inflight_count: int
    waiting_count: int
    kernel_ns_max: int
    launch_count: int
    throttled_ns: int
    demand_ns: int
    bucket_ns: int
    bucket_time_ns: int
    busy_until_ns: int


class UsageShareStruct(ctypes.Structure):
    """``struct cb_usage_share``: memory that one process uses of one device."""

    _fields_: ClassVar = [("used_bytes", ctypes.c_uint64), ("sequence", ctypes.c_uint64)]
    used_bytes: int
    sequence: int


class UsageProcStruct(ctypes.Structure):
    """``struct cb_usage_proc``: entry of one process."""

    _fields_: ClassVar = [
        ("state", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("pid", ctypes.c_int32),
        ("host_pid", ctypes.c_int32),
        ("start_time", ctypes.c_uint64),
        ("pid_namespace", ctypes.c_uint64),
        ("context_count", ctypes.c_uint64),
        ("parker", ctypes.c_uint32),
        ("parked", ctypes.c_uint32),
        ("parked_units", ctypes.c_uint32 * DEVICES_MAX),
        ("reserved0", ctypes.c_uint64 * 2),
        ("share", UsageShareStruct * DEVICES_MAX),
        ("reserving_bytes", ctypes.c_uint64 * DEVICES_MAX),
        ("context_bytes", ctypes.c_uint64 * DEVICES_MAX),
        ("inflight_ns", ctypes.c_uint64 * DEVICES_MAX),
        ("inflight_until_ns", ctypes.c_uint64 * DEVICES_MAX),
        ("waiting", ctypes.c_uint32 * DEVICES_MAX),
        ("pageable_units", ctypes.c_uint32 * DEVICES_MAX),
    ]
    state: int
    generation: int
    pid: int
    host_pid: int
    start_time: int
    pid_namespace: int
    context_count: int
    share: ctypes.Array[UsageShareStruct]
    reserving_bytes: ctypes.Array[ctypes.c_uint64]
    context_bytes: ctypes.Array[ctypes.c_uint64]
    inflight_ns: ctypes.Array[ctypes.c_uint64]
    waiting: ctypes.Array[ctypes.c_uint32]
    pageable_units: ctypes.Array[ctypes.c_uint32]


class UsageKernelStruct(ctypes.Structure):
    """``struct cb_usage_kernel``: measured duration of one kernel."""

    _fields_: ClassVar = [
        ("shape", ctypes.c_uint64),
        ("mean_ns", ctypes.c_uint64),
        ("begun_ns", ctypes.c_uint64),
        ("owner", ctypes.c_uint32),
        ("spare", ctypes.c_uint32),
    ]
    shape: int
    mean_ns: int
    begun_ns: int
    owner: int


class UsageStruct(ctypes.Structure):
    """``struct cb_usage``: the usage page."""

    _fields_: ClassVar = [
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("device_count", ctypes.c_uint32),
        ("reaped_ns", ctypes.c_uint64),
        ("kernel", UsageKernelStruct * KERNELS_MAX),
        ("reserved", ctypes.c_char * (4096 - 24 - 32 * KERNELS_MAX)),
        ("device", UsageDeviceStruct * DEVICES_MAX),
        ("proc", UsageProcStruct * PROCS_MAX),
    ]
    magic: int
    version: int
    device_count: int
    device: ctypes.Array[UsageDeviceStruct]
    proc: ctypes.Array[UsageProcStruct]
