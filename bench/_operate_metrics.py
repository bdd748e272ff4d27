"""Processor time of a scrape of the exporter with a thousand devices, in CPU units; the pool answers from memory."""

from __future__ import annotations

import statistics
import time
from typing import Any

import msgspec

from bench._reference import CPU_UNIT, cpu_time
from bench._report import Report
from calabash.adapters.pool.client import ApiClient
from calabash.api import replies, tenancy
from calabash.api.counters import NO_COUNTERS
from calabash.exporter.catalogue import CATALOGUE
from calabash.exporter.page import MetricsPage
from calabash.exporter.reading import Reader

DEVICES, SLICES, QUEUES, TENANTS = 1000, 2000, 20, 50
GOAL_UNITS = 200
REPEATS = 7


def measure_scrape(report: Report) -> None:
    """Measure the median time of a scrape and the number of series."""
    pool = _Pool()
    now = [0.0]
    page = MetricsPage(Reader(pool), clock=lambda: now[0])
    times, busy, units = [], [], []
    text = b""
    for _ in range(3 if report.quick else REPEATS):
        now[0] += 10
        with cpu_time() as took:
            began = time.perf_counter()
            text = page.text()
            times.append((time.perf_counter() - began) * 1e3)
        busy.append(took.work_s * 1e3)
        units.append(took.unit_s * 1e3)
    what = f"{DEVICES} devices, {SLICES} slices"
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    report.add_ratio("scrape, processor time", busy, units, "ms", of=CPU_UNIT, at_most=GOAL_UNITS, detail=what)
    report.add("scrape", statistics.median(times), "ms", detail=what)
    report.add("series of a scrape", series, "", detail=f"{len(CATALOGUE)} metrics, {len(text) / 1e6:.1f} MB")


class _Pool(ApiClient):
    """Client of a pool that answers decoded JSON from memory."""

    def __init__(self) -> None:
        devices = [made_device(index) for index in range(DEVICES)]
        allocations = [made_allocation(index) for index in range(SLICES)]
        queues = [
            replies.QueueView(
                name=f"queue{n}",
                parent="",
                guarantee=4,
                deserved=4,
                limit=8,
                weight=1,
                allocated=2,
                pending=1,
                users=[],
                groups=[],
            )
            for n in range(QUEUES)
        ]
        status = replies.Status(
            version="1", pid=1, home="/", node="n", sim="", db="", started_at=1, uptime_s=1, devices=DEVICES,
            allocations=SLICES, pending=0, driver="nvidia", arbiter_pid=1, membership="kernel", serves="every user",
        )  # fmt: skip
        quota = [
            tenancy.QuotaView(
                tenant=f"tenant{n}", project="", queue=f"tenant{n}", guarantee=4, limit=8, allocated=2, borrowed=0, pending=1,
                budget="5000EUR", spent="1234.50EUR",
            )
            for n in range(TENANTS)
        ]  # fmt: skip
        self._answers = {
            "/v1/quota": msgspec.json.encode(tenancy.QuotaList(items=quota)),
            "/v1/status": msgspec.json.encode(status),
            "/v1/devices": msgspec.json.encode(replies.DeviceList(items=devices)),
            "/v1/queues": msgspec.json.encode(replies.QueueList(items=queues)),
            "/v1/allocations": msgspec.json.encode(replies.AllocationList(items=allocations)),
            "/v1/counters": msgspec.json.encode(NO_COUNTERS),
            "/v1/events": b'{"items":[]}',
            "/v1/networks/objects": b'{"items":[]}',
        }

    def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        return msgspec.json.decode(self._answers[path.partition("?")[0]])


def made_device(index: int) -> replies.DeviceView:
    """Return a device of the pool."""
    return replies.DeviceView(
        uuid=f"GPU-{index:036d}", index=index, vendor="nvidia", model="NVIDIA H100", compute_capability="9.0",
        memory_mib=81920, memory_used_mib=40000, memory_allocated_mib=60000, memory_free_mib=21920,
        core_allocated_percent=80, utilization_percent=55, temperature_c=61, power_w=431.5, health="healthy", cause="",
        mode="vgpu", pinned="", replicas=4, interval="", spill_mib=0, allocations=["a", "b"], unmanaged_processes=[],
    )  # fmt: skip


def made_allocation(index: int) -> replies.AllocationView:
    """Return a slice of one of the devices."""
    device = index % DEVICES
    part = replies.SliceUseView(
        device=f"GPU-{device:036d}", device_index=device, memory_mib=30000, core_percent=40, memory_used_mib=20000,
        core_used_percent=27.5, denied=1, throttled_s=12.25,
    )  # fmt: skip
    return replies.AllocationView(
        id=f"a-{index:012x}", tenant=f"tenant{index % TENANTS}", queue=f"queue{index % QUEUES}", user="ann", uid=1,
        command=["python", "train.py"], mode="vgpu", policy="burst", priority=0, gang="", state="running", reason="",
        explanation="", created_at=1, started_at=2, ended_at=None, pids=[index], slices=[part],
    )  # fmt: skip
