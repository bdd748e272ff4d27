"""Device preference for shapes of best-effort compute, which spreads them so that each can expect enough compute.

Theory of operation. A best-effort shape is guaranteed memory but no compute, so free compute does not tell which device is
best: by amounts alone, all such slices would go to one device until its memory is full. The compute that a slice can expect of
a device is the free compute divided by the number of best-effort slices, this one included. A device in use on which a slice
can expect ``EXPECTED_MILLI_MIN`` is preferred, so that idle devices stay whole; then an idle device; then the device in use
with the most expected compute. The number of slices per device is limited by the sharing mode (``Shape.gpu_slices_max``).
"""

from __future__ import annotations

import numpy as np

from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Floats, Ints, Rows
from calabash.sched.cluster.shape import WHOLE_MILLI

EXPECTED_MILLI_MIN = 250  # four slices share a device before an idle one is taken
_CLASS = 10 * WHOLE_MILLI  # larger than any expected compute and any score of a policy


def best_effort_scores(cluster: Cluster, rows: Rows, fits: Bools) -> Ints:
    """Return the score of each device for a best-effort slice; -1 where the slice does not fit.

    A larger score is better. The scores have one row per node in ``rows`` and one column per device, as ``fits`` has.

    Args:
        fits: mask of the devices where the shape fits.
    """
    expected = cluster.gpu_free_milli[rows] // (1 + cluster.gpu_best_effort[rows])
    used = cluster.gpu_users[rows] > 0
    rank = np.where(used, np.where(expected >= EXPECTED_MILLI_MIN, 2, 0), 1)
    found: Ints = np.where(fits, rank * _CLASS + np.where(used, expected, 0), -1)
    return found


def with_device_preference(cluster: Cluster, rows: Rows, fits: Bools, scores: Floats) -> Floats:
    """Return node scores for a best-effort slice that depend on the best device of each node first.

    Nodes whose best devices are of the same class (``best_effort_scores``) are ordered by ``scores``.

    Args:
        fits: mask of the devices where the shape fits, with one row per node in ``rows``.
        scores: score of each node in ``rows`` by the placement policy.
    """
    best = best_effort_scores(cluster, rows, fits).max(axis=1)
    crowded = np.where(best < _CLASS, best, 0)  # among other devices the policy decides
    bounded = np.clip(scores, -WHOLE_MILLI, WHOLE_MILLI)
    ranked: Floats = np.where(np.isfinite(scores), best // _CLASS * _CLASS + 3 * crowded + bounded, scores)
    return ranked
