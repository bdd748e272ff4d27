"""Dialect of Volcano's vGPU, whose resources mean the same as those of HAMi under other names."""

from __future__ import annotations

from dataclasses import replace

from calabash.kubernetes.dialects.hami import memory_and_cores
from calabash.kubernetes.dialects.protocol import Asking, Dialect
from calabash.model.request import MIG_MODE, GpuRequest

_NUMBER, _MEMORY, _PERCENTAGE, _CORES, _MODE = (
    f"volcano.sh/vgpu-{word}" for word in ("number", "memory", "memory-percentage", "cores", "mode")
)


def _request(asking: Asking) -> GpuRequest:
    unit_mib = asking.settings.volcano_memory_mib
    request = memory_and_cores(asking, _NUMBER, _MEMORY, _PERCENTAGE, _CORES, unit_mib=unit_mib)
    return replace(request, mode=MIG_MODE) if asking.annotation(_MODE) == "mig" else request


DIALECT = Dialect(
    name="volcano",
    system="Volcano vGPU",
    resources={
        _NUMBER: "virtual cards; 1 if only the other amounts are given",
        _MEMORY: "memory of each, in MiB (a setting where the plug-in's `gpuMemoryFactor` is not 1)",
        _PERCENTAGE: "memory of each, in percent of its card",
        _CORES: "compute of each, in percent; not limited by default",
    },
    annotations={_MODE: "`mig`: the smallest MIG instance that has the amounts"},
    queues=("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"),
    schedulers=frozenset({"volcano"}),
    request=_request,
)
