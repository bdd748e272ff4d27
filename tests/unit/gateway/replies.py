"""Builders of complete replies of the pool for tests of pages, with defaults for fields that do not matter."""

from __future__ import annotations

from typing import Any

from calabash.api import replies

DEVICE: dict[str, Any] = {
    "vendor": "nvidia",
    "model": "NVIDIA A100-SXM4-40GB",
    "compute_capability": "8.0",
    "memory_mib": 40000,
    "memory_used_mib": 0,
    "memory_allocated_mib": 0,
    "memory_free_mib": 40000,
    "core_allocated_percent": 0,
    "utilization_percent": 0,
    "temperature_c": 30,
    "power_w": 52.0,
    "health": "healthy",
    "cause": "",
    "mode": "",
    "pinned": "",
    "replicas": 8,
    "interval": "",
    "spill_mib": 0,
    "allocations": [],
    "unmanaged_processes": [],
}
ALLOCATION: dict[str, Any] = {
    "tenant": "vision",
    "queue": "vision",
    "user": "ann",
    "uid": 1000,
    "command": ["python", "train.py"],
    "mode": "vgpu",
    "policy": "fixed",
    "priority": 0,
    "gang": "",
    "state": "running",
    "reason": "",
    "explanation": "",
    "created_at": 1000.0,
    "started_at": 1001.0,
    "ended_at": None,
    "pids": [7],
    "slices": [],
}


def device(index: int = 0, **said: Any) -> replies.DeviceView:
    return replies.DeviceView(index=index, uuid=f"GPU-{index}", **{**DEVICE, **said})


def part(index: int = 0, *, memory_mib: int = 8000, core_percent: int = 30, **said: Any) -> replies.SliceUseView:
    used = {"memory_used_mib": 0, "core_used_percent": 0.0, "denied": 0, "throttled_s": 0.0, **said}
    return replies.SliceUseView(
        device=f"GPU-{index}", device_index=index, memory_mib=memory_mib, core_percent=core_percent, **used
    )


def allocation(name: str = "a1", **said: Any) -> replies.AllocationView:
    return replies.AllocationView(id=name, **{**ALLOCATION, **said})


def queue(name: str, **said: Any) -> replies.QueueView:
    plain = {
        "parent": "",
        "guarantee": 0.0,
        "deserved": 0.0,
        "limit": None,
        "weight": 1.0,
        "allocated": 0.0,
        "pending": 0.0,
    }
    return replies.QueueView(name=name, **{**plain, "users": [], "groups": [], **said})
