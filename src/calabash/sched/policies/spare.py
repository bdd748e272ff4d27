"""Spare CPU of nodes: value of CPU and host memory when they, and not the devices, are the scarce resource.

Theory of operation. If CPU is used up before all devices are allocated, the last requests find either devices without CPU, or
remainders of CPU that are too small for any request. The demand tells how free CPU can still be used:

* The requests for devices that can still be placed then are those that need the least CPU. So each free card needs only their
  CPU (``card_cpu_milli``, of the lightest tenth of the device demand) and their memory. CPU beyond that is spare; if a node has
  less, some of its cards stay idle.
* Spare CPU is used by requests without devices, which have few different sizes. Of x spare vCPU they can use the largest sum of
  their sizes that is at most x (``usable_milli``): with the sizes 8 and 12.5, nothing of 7 and all of 20.5. So a request is
  placed where the remaining CPU can be used exactly.

Host memory is converted to CPU by ``milli_per_mib``, the CPU per MiB of memory-intensive requests without devices, and the
spare CPU of a node is the smaller of the two. The value is 0 if CPU is plentiful (``strength`` 0), and if many requests end
(``turnover``), because then not only light requests are placed, and remainders do not last.
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
# Interpolation points: ratio of CPU demand to supply at full device demand, and the strength of spare CPU there.
SHORTAGE = ((0.97, 1.01), (0.0, 1.0))
LIGHT_CPU_SHARE = 0.1
LIGHT_MEMORY_SHARE = 0.75
HUNGRY_QUANTILE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareCpu:
    """Parameters of spare CPU, learned from a demand on one cluster.

    Attributes:
        pressure: see ``cpu_pressure``.
        strength: 0 if CPU is not the limit, up to 1 if it is.
        card_cpu_milli, card_memory_mib: CPU and host memory that are kept per free card, for light requests.
        milli_per_mib: CPU milli that correspond to one MiB of host memory; 0 if memory is not a limit.
        usable_milli: result of ``usable``: entry k is the CPU that requests without devices can use of k * STEP_MILLI
            spare CPU.
    """

    pressure: float
    strength: float
    card_cpu_milli: int
    card_memory_mib: int
    milli_per_mib: float
    usable_milli: Ints

    def amount_milli(self, cpu_milli: Ints, memory_mib: Ints, total_milli: Ints) -> Floats:
        """Return the spare CPU of each node in milli; it is negative if some cards of the node lack CPU.

        Args:
            cpu_milli, memory_mib, total_milli: free CPU, free host memory and free device compute of the nodes.
        """
        spare: Floats = cpu_milli - total_milli * (self.card_cpu_milli / WHOLE_MILLI)
        if self.milli_per_mib:
            kept = self.card_memory_mib * self.milli_per_mib / WHOLE_MILLI
            np.minimum(spare, memory_mib * self.milli_per_mib - total_milli * kept, out=spare)
        return spare

    def __str__(self) -> str:
        kept = f"{self.card_cpu_milli / 1000:.1f} vCPU are kept per free card, the rest counts by the requests that fit into it"
        return f"CPU is short, {100 * self.pressure:.0f} % of it requested: {kept}"


def cpu_pressure(demand: Demand, cluster: Cluster) -> float:
    """Return the ratio of CPU demand to supply if the demand were scaled so that it requests all devices.

    The ratio is 0 without demand for CPU or devices.
    """
    supply = int(cluster.cpu_milli.sum())
    devices = demand.gpu_total_milli
    if not supply or not devices:
        return 0.0
    asked = sum(shape.cpu_milli * count for shape, count in demand.counts.items())
    return asked / supply * cluster.gpu_total * WHOLE_MILLI / devices


def learn_spare(demand: Demand, cluster: Cluster) -> SpareCpu | None:
    """Return the parameters of spare CPU; None if CPU is not the limit, or if there are no requests without devices."""
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
        milli_per_mib=_milli_per_mib(hosts),
        usable_milli=usable(_sizes(hosts), int(cluster.cpu_milli.max(initial=0))),
    )


def usable(sizes: Sequence[int], most_milli: int) -> Ints:
    """Return for amounts of CPU in steps of STEP_MILLI how much of each amount requests of some sizes can use.

    Entry k is the largest sum of the sizes, each taken any number of times, that is at most k * STEP_MILLI.

    Args:
        sizes: sizes in milli.
        most_milli: largest amount; the result has most_milli / STEP_MILLI + 1 entries.
    """
    steps = most_milli // STEP_MILLI + 1
    reached = np.zeros(steps, np.bool_)
    reached[0] = True
    for size in sizes:
        stride = -(-size // STEP_MILLI)
        while stride < steps:  # allows 1, then up to 3, 7, ... of this size
            reached[stride:] |= reached[:-stride]
            stride *= 2
    found: Ints = np.maximum.accumulate(np.where(reached, np.arange(steps), 0)) * STEP_MILLI
    return found


def _light(per_milli: list[tuple[float, int]], share: float) -> int:
    """Return the mean need per card, in CPU milli or host MiB, of the requests with the least need per card.

    Args:
        per_milli: for each shape its need per milli of device compute, and its weight.
        share: fraction of the total weight over which the mean is taken, the least need first.
    """
    per_milli.sort()
    left = total = share * sum(weight for _, weight in per_milli)
    need = 0.0
    for each, weight in per_milli:
        taken = min(left, weight)
        need += each * taken
        left -= taken
    return round(need / total * WHOLE_MILLI)


def _milli_per_mib(hosts: list[tuple[Shape, int]]) -> float:
    """Return the ratio of CPU milli to MiB of host memory at the lower quartile of the requests without devices.

    It is the ratio of memory-intensive requests. It is 0 if the requests at the quartile need no memory.

    Args:
        hosts: shapes without devices, each with its number of requests.
    """
    ratios = sorted((s.cpu_milli / s.memory_mib if s.memory_mib else np.inf, n) for s, n in hosts)
    left = HUNGRY_QUANTILE * sum(n for _, n in ratios)
    for ratio, n in ratios:
        left -= n
        if left <= 0:
            return float(ratio) if np.isfinite(ratio) else 0.0
    return 0.0


def _sizes(hosts: list[tuple[Shape, int]]) -> list[int]:
    """Return the most frequent CPU sizes, in milli, of the requests without devices.

    They cover TYPICAL_SHARE of these requests, but are at most SIZES_MAX.
    """
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
