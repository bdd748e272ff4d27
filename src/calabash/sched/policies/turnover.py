"""Turnover: whether a cluster fills, or what arrives takes the place of what departs.

Theory of operation. What a request leaves beside it on a node stays until somebody departs from there. In a cluster that only
fills this is the end, so what is left must suit what still comes. Where as much departs as arrives every gap opens again by
itself, and a price on it only moves requests away from where they fit best: with departures it cost allocation and admitted
fewer requests without devices. So it is measured how much of the CPU taken lately was given back. Both are found node by node
between two looks, so what was only tried in between leaves no trace; nor does what takes exactly the place of its like.
"""

from __future__ import annotations

import numpy as np

from calabash.sched.cluster.arrays import Cluster

LOOK_ARRIVALS = 64
GIVEN_BACK_MAX = 0.1


class Turnover:
    """What requests take of a cluster's CPU and give back, over at most one filling of it.

    Attributes:
        fills: at most GIVEN_BACK_MAX of what was taken lately was given back; True before anything was seen.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.fills = True
        self._cluster = cluster
        self._free_milli = cluster.cpu_free_milli.copy()
        self._taken_milli = self._back_milli = 0.0
        self._until_look = LOOK_ARRIVALS

    def arrived(self) -> bool:
        """One request has arrived; True when ``fills`` is another now."""
        self._until_look -= 1
        return self._until_look <= 0 and self._look()

    def _look(self) -> bool:
        self._until_look = LOOK_ARRIVALS
        free = self._cluster.cpu_free_milli
        if len(free) == len(self._free_milli):  # else nodes joined: what is free there was not given back
            change = free - self._free_milli
            self._back_milli += float(np.maximum(change, 0).sum())
            self._taken_milli += float(np.maximum(-change, 0).sum())
        self._free_milli = free.copy()
        if self._taken_milli + self._back_milli > float(self._cluster.cpu_milli.sum()):
            self._taken_milli /= 2
            self._back_milli /= 2
        before, self.fills = self.fills, self._back_milli <= GIVEN_BACK_MAX * self._taken_milli
        return self.fills != before
