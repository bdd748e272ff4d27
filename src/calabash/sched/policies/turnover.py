"""Measurement of turnover: whether a cluster only fills, or requests also end and free their resources.

Theory of operation. The resources that a placement leaves free on a node stay as they are until another request of the node
ends. In a cluster that only fills, these remainders must suit later requests. If as many requests end as arrive, every gap is
freed again, and a price on it only moves requests away from their best placement: measurements with departures showed less
allocation, and fewer requests without devices. So the part of the recently taken CPU that was given back is measured. Both
amounts are computed by node from the free CPU at two samples, so what-if placements between them have no effect, nor has a
request that takes exactly the resources of one that ended.
"""

from __future__ import annotations

import numpy as np

from calabash.sched.cluster.arrays import Cluster

SAMPLE_ARRIVALS = 64
GIVEN_BACK_MAX = 0.1


class Turnover:
    """Sums of the CPU that requests of a cluster have recently taken and given back.

    If the two sums exceed the CPU of the cluster, both are halved. So older amounts count less and less.

    Attributes:
        fills: True if the cluster only fills up: at most the fraction GIVEN_BACK_MAX of the taken CPU was given back.
            It is True before the first sample too.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.fills = True
        self._cluster = cluster
        self._free_milli = cluster.cpu_free_milli.copy()
        self._taken_milli = self._back_milli = 0.0
        self._until_sample = SAMPLE_ARRIVALS

    def arrived(self) -> bool:
        """Count a new request, and sample the free CPU of the cluster at every SAMPLE_ARRIVALS-th one.

        Returns True if ``fills`` has changed.
        """
        self._until_sample -= 1
        return self._until_sample <= 0 and self._sample()

    def _sample(self) -> bool:
        self._until_sample = SAMPLE_ARRIVALS
        free = self._cluster.cpu_free_milli
        if len(free) == len(self._free_milli):  # else nodes were added, whose free CPU was not given back
            change = free - self._free_milli
            self._back_milli += float(np.maximum(change, 0).sum())
            self._taken_milli += float(np.maximum(-change, 0).sum())
        self._free_milli = free.copy()
        if self._taken_milli + self._back_milli > float(self._cluster.cpu_milli.sum()):
            self._taken_milli /= 2
            self._back_milli /= 2
        before, self.fills = self.fills, self._back_milli <= GIVEN_BACK_MAX * self._taken_milli
        return self.fills != before
