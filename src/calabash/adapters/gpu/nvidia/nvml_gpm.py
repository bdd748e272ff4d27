"""Busy time of GPU instances from NVML's GPU performance monitoring (GPM), on Hopper and later.

GPM computes the utilisation between two samples. The last sample of each instance is therefore kept until the next
reading, and freed when the instance does not exist any more. If the driver does not support GPM or refuses it, GPM is
not called again. Used in the card's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import pynvml

from calabash.model.device import DeviceUuid, PartTime

_MIN_INTERVAL_S = 0.1  # shortest time between two samples
_WANTED = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL


@dataclass(slots=True)
class _Watched:
    """GPU instance of which samples are taken.

    Attributes:
        part: UUID of its MIG device.
        sample: its last sample.
        at_s: monotonic time of the last sample.
        busy_ns: busy time between the first and the last sample.
    """

    part: DeviceUuid
    sample: object
    at_s: float
    busy_ns: int = 0


class InstanceTimes:
    """Busy times of the GPU instances of one card."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._silent = False

    def read(self, handle: object, instances: Iterable[tuple[int, DeviceUuid]]) -> tuple[PartTime, ...]:
        """Sample the given instances; return the busy time of each since its first sample.

        Args:
            instances: pairs of the GPU instance's number and the UUID of its only MIG device.
        """
        wanted = dict(instances)
        for number in [n for n, known in self._watched.items() if wanted.get(n) != known.part]:
            pynvml.nvmlGpmSampleFree(self._watched.pop(number).sample)
        if not self._silent:
            try:
                for number, part in wanted.items():
                    self._sample(handle, number, part)
            except pynvml.NVMLError as error:
                if error.value not in (
                    pynvml.NVML_ERROR_INVALID_ARGUMENT,
                    pynvml.NVML_ERROR_NOT_FOUND,
                ):  # just destroyed
                    self._silent = True
        return tuple(PartTime(uuid=known.part, busy_ns=known.busy_ns) for known in self._watched.values())

    def _sample(self, handle: object, number: int, part: DeviceUuid) -> None:
        known, now_s = self._watched.get(number), time.monotonic()
        if known is not None and now_s - known.at_s < _MIN_INTERVAL_S:
            return
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmMigSampleGet(handle, number, sample)
            percent = _percent(known.sample, sample) if known is not None else 0.0
        except pynvml.NVMLError:
            pynvml.nvmlGpmSampleFree(sample)
            raise
        if known is None:
            self._watched[number] = _Watched(part, sample, now_s)
            return
        known.busy_ns += int((now_s - known.at_s) * percent * 1e7)
        pynvml.nvmlGpmSampleFree(known.sample)
        known.sample, known.at_s = sample, now_s


def _percent(before: object, after: object) -> float:
    asked = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=1)
    asked.sample1, asked.sample2 = before, after
    asked.metrics[0].metricId = _WANTED
    pynvml.nvmlGpmMetricsGet(asked)
    found = asked.metrics[0]
    if found.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(found.nvmlReturn)
    return float(min(100.0, max(0.0, found.value)))
