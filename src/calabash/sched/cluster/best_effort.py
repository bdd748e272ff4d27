"""Devices for shapes of best-effort compute: spread so that a slice may expect a part of a device worth having.

Theory of operation. A best-effort shape is promised memory and no compute, so free compute says nothing about where it fits
best: by amounts alone, all such slices would go to one device until its memory is full. What a slice may expect of a device is
the compute that is not promised there, divided by the best-effort slices on it and this one. A device in use is preferred as
long as a slice may expect ``EXPECTED_MILLI_MIN`` of it, so that idle devices stay whole; then an idle device is; then the
device in use of which most may be expected. The most slices per device are the sharing mode's (``Shape.gpu_slices_max``).
"""

from __future__ import annotations

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.shape import WHOLE_MILLI

EXPECTED_MILLI_MIN = 250  # four slices share a device before an idle one is taken
_CLASS = 10 * WHOLE_MILLI  # larger than what may be expected, and than scores of policies


def worth(cluster: Cluster, rows: Rows, fits: Bools) -> Ints:
    """Return [rows, G] how well each device serves a best-effort slice, larger is better; -1 where it does not fit."""
    expected = cluster.gpu_free_milli[rows] // (1 + cluster.gpu_best_effort[rows])
    used = cluster.gpu_users[rows] > 0
    rank = np.where(used, np.where(expected >= EXPECTED_MILLI_MIN, 2, 0), 1)
    found: Ints = np.where(fits, rank * _CLASS + np.where(used, expected, 0), -1)
    return found


def preferred(cluster: Cluster, rows: Rows, fits: Bools, scores: Floats) -> Floats:
    """Return a policy's scores of the rows with the preference for their best devices before them."""
    best = worth(cluster, rows, fits).max(axis=1)
    crowded = np.where(best < _CLASS, best, 0)  # the policy decides among devices that are not
    bounded = np.clip(scores, -WHOLE_MILLI, WHOLE_MILLI)
    ranked: Floats = np.where(np.isfinite(scores), best // _CLASS * _CLASS + 3 * crowded + bounded, scores)
    return ranked
