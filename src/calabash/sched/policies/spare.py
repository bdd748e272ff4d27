"""Spare CPU: what CPU and host memory are worth while they, and not the devices, are what runs out.

Theory of operation. When more CPU is asked for than there is by the time all devices are given out, the last requests
find either devices without CPU or CPU in slivers that nobody asks for. Two facts of the demand say what free CPU is still
good for:

* The requests for devices that still come to nothing then are the light ones, so each free card needs only their CPU
  (``card_cpu_milli``, the lightest tenth of device demand) and their memory. What a node has beyond that is spare; what
  it has less leaves cards idle.
* Spare CPU goes to requests without devices, which come in few sizes. Of x spare vCPU they can use the largest sum of
  their sizes that x holds (``usable_milli``): with sizes 8 and 12.5 nothing of 7, all of 20.5. So a request goes where
  what it leaves can still be filled exactly, and slivers are left neither by it nor by those after it.

Host memory is the same in the unit of CPU: at ``milli_per_mib``, the CPU that memory-hungry requests without devices bring
with a MiB, a node's spare is the lesser of the two. With CPU in plenty all of this is nothing (``strength`` 0), and so it is
where much departs again (``turnover``): light requests are not all that still comes then, and slivers do not last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Floats, Ints
from calabash.sched.cluster.demand import TYPICAL_SHARE, Demand
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape

STEP_MILLI = 100
SIZES_MAX = 8
# CPU demand over supply when all devices are asked for; how much the price of spare CPU counts there
SHORTAGE = ((0.97, 1.01), (0.0, 1.0))
LIGHT_CPU_SHARE = 0.1
LIGHT_MEMORY_SHARE = 0.75
HUNGRY_QUANTILE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareCpu:
    """What a demand says about spare CPU on one cluster.

    Attributes:
        pressure: CPU that is asked for by the time all devices are, over what there is.
        strength: 0 (CPU is no limit) to 1 (it is the limit).
        card_cpu_milli, card_memory_mib: what a free card keeps for the light requests that may still come.
        milli_per_mib: CPU that goes with a MiB of host memory; 0 where memory limits nobody.
        usable_milli [k]: how much of k * STEP_MILLI spare CPU requests without devices can use.
    """

    pressure: float
    strength: float
    card_cpu_milli: int
    card_memory_mib: int
    milli_per_mib: float
    usable_milli: Ints

    def amount_milli(self, cpu_milli: Ints, memory_mib: Ints, total_milli: Ints) -> Floats:
        """[k] spare CPU of nodes with this much free CPU, host memory and device compute; below 0: cards go without."""
        spare: Floats = cpu_milli - total_milli * (self.card_cpu_milli / WHOLE_MILLI)
        if self.milli_per_mib:
            kept = self.card_memory_mib * self.milli_per_mib / WHOLE_MILLI
            np.minimum(spare, memory_mib * self.milli_per_mib - total_milli * kept, out=spare)
        return spare

    def __str__(self) -> str:
        kept = f"a free card keeps {self.card_cpu_milli / 1000:.1f} vCPU, the rest counts by what fits into it"
        return f"CPU is short, {100 * self.pressure:.0f} % of it asked for: {kept}"


def cpu_pressure(demand: Demand, cluster: Cluster) -> float:
    """CPU demand over supply by the time that all devices are asked for; 0 without CPU or device demand."""
    supply = int(cluster.cpu_milli.sum())
    devices = demand.gpu_total_milli
    if not supply or not devices:
        return 0.0
    asked = sum(shape.cpu_milli * count for shape, count in demand.counts.items())
    return asked / supply * cluster.gpu_total * WHOLE_MILLI / devices


def learn_spare(demand: Demand, cluster: Cluster) -> SpareCpu | None:
    """None while CPU is no limit, or when nothing without devices is asked for."""
    pressure = cpu_pressure(demand, cluster)
    strength = float(np.interp(pressure, *SHORTAGE))
    hosts = [(shape, n) for shape, n in demand.counts.items() if not shape.gpu_count and shape.cpu_milli]
    if not strength or not hosts:
        return None
    cards = [(shape, n * shape.gpu_total_milli) for shape, n in demand.counts.items() if shape.gpu_total_milli]
    return SpareCpu(
        pressure=pressure,
        strength=strength,
        card_cpu_milli=_light([(shape.cpu_milli / shape.gpu_total_milli, n) for shape, n in cards], LIGHT_CPU_SHARE),
        card_memory_mib=_light(
            [(shape.memory_mib / shape.gpu_total_milli, n) for shape, n in cards], LIGHT_MEMORY_SHARE
        ),
        milli_per_mib=_hungry(hosts),
        usable_milli=usable(_sizes(hosts), int(cluster.cpu_milli.max(initial=0))),
    )


def usable(sizes: Sequence[int], most_milli: int) -> Ints:
    """[most / STEP_MILLI + 1] the largest sum of any number of these sizes (milli) within k * STEP_MILLI."""
    steps = most_milli // STEP_MILLI + 1
    reached = np.zeros(steps, np.bool_)
    reached[0] = True
    for size in sizes:
        stride = -(-size // STEP_MILLI)
        while stride < steps:  # one more, two more, four more, ... of this size
            reached[stride:] |= reached[:-stride]
            stride *= 2
    found: Ints = np.maximum.accumulate(np.where(reached, np.arange(steps), 0)) * STEP_MILLI
    return found


def _light(per_milli: list[tuple[float, int]], share: float) -> int:
    """Mean need of a card over the lightest ``share`` of the demand: (need per milli of compute, weight) of all."""
    per_milli.sort()
    left = total = share * sum(weight for _, weight in per_milli)
    need = 0.0
    for each, weight in per_milli:
        taken = min(left, weight)
        need += each * taken
        left -= taken
    return round(need / total * WHOLE_MILLI)


def _hungry(hosts: list[tuple[Shape, int]]) -> float:
    """Lower quartile of CPU per MiB over requests without devices; 0 when it asks for no memory."""
    ratios = sorted((s.cpu_milli / s.memory_mib if s.memory_mib else np.inf, n) for s, n in hosts)
    left = HUNGRY_QUANTILE * sum(n for _, n in ratios)
    for ratio, n in ratios:
        left -= n
        if left <= 0:
            return float(ratio) if np.isfinite(ratio) else 0.0
    return 0.0


def _sizes(hosts: list[tuple[Shape, int]]) -> list[int]:
    """The most popular sizes in milli until they are TYPICAL_SHARE of the requests without devices, SIZES_MAX at most."""
    counts: dict[int, int] = {}
    for shape, n in hosts:
        counts[shape.cpu_milli] = counts.get(shape.cpu_milli, 0) + n
    total, covered, found = sum(counts.values()), 0, []
    for size, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:SIZES_MAX]:
        if covered >= TYPICAL_SHARE * total:
            break
        found.append(size)
        covered += n
    return found
