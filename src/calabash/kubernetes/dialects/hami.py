"""Dialect of HAMi: virtual cards, each with an amount of memory and a percentage of compute.

A virtual card is a share of one physical card. Without an amount of memory, each virtual card has all the memory of its
physical card. Without an amount of cores, its compute is not limited.
"""

from __future__ import annotations

from dataclasses import replace

from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.dialects.protocol import Asking, Dialect, part_of_cards, words
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import MIG_MODE, ComputePolicy, GpuRequest, Selector

MEMORY, PERCENTAGE, CORES, PRIORITY = (
    f"nvidia.com/{word}" for word in ("gpumem", "gpumem-percentage", "gpucores", "priority")
)
_USE_TYPE, _NO_TYPE, _USE_UUID, _NO_UUID, _MODE = (
    f"nvidia.com/{word}" for word in ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid", "vgpu-mode")
)


def _request(asking: Asking) -> GpuRequest:
    request = memory_and_cores(asking, GPU, MEMORY, PERCENTAGE, CORES, unit_mib=1)
    selector = Selector(
        models=words(asking.annotation(_USE_TYPE)),
        models_excluded=words(asking.annotation(_NO_TYPE)),
        uuids=tuple(DeviceUuid(u) for u in words(asking.annotation(_USE_UUID))),
        uuids_excluded=tuple(DeviceUuid(u) for u in words(asking.annotation(_NO_UUID))),
    )
    mode = MIG_MODE if asking.annotation(_MODE) == "mig" else request.mode
    policy = ComputePolicy.BEST_EFFORT if asking.count(PRIORITY) > 0 else request.policy
    return replace(request, selector=selector, policy=policy, mode=mode)


def memory_and_cores(
    asking: Asking, number: str, memory: str, percentage: str, cores: str, *, unit_mib: int
) -> GpuRequest:
    """Return the request that a container makes by four resources, with the meaning that HAMi gives them.

    Other systems have the same four resources under other names.

    Args:
        number, memory, percentage, cores: names of the resources for the number of virtual cards, and for the memory in
            units, the memory in percent and the compute in percent of each.
        unit_mib: MiB in one unit of ``memory``.

    Raises:
        CalabashError: an amount is invalid, or memory is given in both ways.
    """
    count, units, percent = asking.count(number) or 1, asking.count(memory), asking.percent(percentage)
    if units and percent:
        raise CalabashError(f"{memory} {units} and {percentage} {percent} are both asked", hint="keep one of the two")
    core_percent = asking.percent(cores)
    if not units and percent in (None, 100):  # the container has all memory of the card
        return GpuRequest(count=count, memory_milli=1000, core_percent=core_percent or 100)
    return part_of_cards(
        count,
        memory_mib=units * unit_mib or None,
        memory_milli=10 * percent if percent else None,
        core_percent=core_percent,
    )


def _selects(asking: Asking) -> bool:
    return asking.has(GPU) and bool(asking.annotation(_USE_TYPE, _NO_TYPE, _USE_UUID, _NO_UUID, _MODE))


DIALECT = Dialect(
    name="hami",
    system="HAMi",
    resources={
        GPU: "virtual cards; 1 if only the other amounts are given",
        MEMORY: "memory of each, in MiB; all of the card by default",
        PERCENTAGE: "memory of each, in percent of its card",
        CORES: "compute of each, in percent; not limited by default",
        PRIORITY: "above 0: only compute that other containers leave idle",
    },
    annotations={
        _USE_TYPE: "acceptable models, separated by commas",
        _NO_TYPE: "models that are not acceptable",
        _USE_UUID: "acceptable devices",
        _NO_UUID: "devices that are not acceptable",
        _MODE: "`mig`: the smallest MIG instance that has the amounts",
    },
    schedulers=frozenset({"hami-scheduler"}),
    order=10,  # before NVIDIA: HAMi uses its resource name together with other names
    marks=frozenset({MEMORY, PERCENTAGE, CORES, PRIORITY}),
    request=_request,
    also=_selects,
)
