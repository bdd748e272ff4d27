"""Metrics of the pool's devices under the names and labels of NVIDIA's dcgm-exporter, for existing dashboards.

Names, units and labels are those of its default counters (``etc/default-counters.csv``). Values that the pool does not
know are left out. If one allocation holds a device alone, two more labels name its tenant and the allocation;
dcgm-exporter has labels for the pod instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from calabash.adapters.exposition import Family
from calabash.exporter.reading import PoolReading

LABELS = ("gpu", "UUID", "device", "modelName", "Hostname")
FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %).",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB).",
    "DCGM_FI_DEV_FB_FREE": "Framebuffer memory free (in MiB).",
    "DCGM_FI_DEV_GPU_TEMP": "GPU temperature (in C).",
    "DCGM_FI_DEV_POWER_USAGE": "Power draw (in W).",
}


def dcgm_families(reading: PoolReading) -> Iterator[Family]:
    """Yield one family of metrics for each of the ``FIELDS`` of dcgm-exporter."""
    found = {name: Family(name=name, help=text, labels=LABELS) for name, text in FIELDS.items()}
    for device in reading.devices:
        labels = (str(device.index), device.uuid, f"nvidia{device.index}", device.model, reading.status.node)
        figures: dict[str, float] = {
            "DCGM_FI_DEV_GPU_UTIL": device.utilization_percent,
            "DCGM_FI_DEV_FB_USED": device.memory_used_mib,
            "DCGM_FI_DEV_FB_FREE": max(0, device.memory_mib - device.memory_used_mib),
            "DCGM_FI_DEV_GPU_TEMP": device.temperature_c,
            "DCGM_FI_DEV_POWER_USAGE": device.power_w,
        }
        for name, value in figures.items():
            found[name].add(labels, value)
    yield from found.values()
