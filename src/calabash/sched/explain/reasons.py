"""Reason of each node for refusing a shape: the first condition that fails there, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from calabash.model.errors import Reason
from calabash.sched.cluster.columns import Bools
from calabash.sched.cluster.fit import CompiledShape

# Conditions in the order in which they are checked. The code of a reason is its position plus one; 0 means that the shape fits.
REASONS: tuple[Reason, ...] = (
    Reason.SELECTOR_MISMATCH,
    Reason.TAINTED,
    Reason.NO_DEVICES,
    Reason.TOO_LARGE,
    Reason.UNHEALTHY,
    Reason.MODE_CONFLICT,
    Reason.NO_CAPACITY,
    Reason.NO_CPU,
    Reason.NO_HOST_MEMORY,
    Reason.NO_CORES,
    Reason.NO_MEMORY,
    Reason.TOPOLOGY,
)
_CODE = {reason: code for code, reason in enumerate(REASONS, 1)}


def reasons(compiled: CompiledShape) -> npt.NDArray[np.int8]:
    """Return for each node the code of the first condition that fails there.

    The code is the position of the condition in REASONS plus one; 0 if no condition fails.
    """
    compiled.renew()
    cluster, shape = compiled.cluster, compiled.shape
    codes = np.zeros(cluster.node_count, np.int8)

    def fail(where: Bools, reason: Reason) -> None:
        codes[(codes == 0) & where] = _CODE[reason]

    if compiled.selected is not None:
        fail(~compiled.selected, Reason.SELECTOR_MISMATCH)
    if compiled.tolerated is not None:
        fail(~compiled.tolerated, Reason.TAINTED)
    if shape.gpu_count:
        fail(cluster.gpu_count == 0, Reason.NO_DEVICES)
        fail(cluster.gpu_count < shape.gpu_count, Reason.TOO_LARGE)
        if compiled.device_static is not None:
            fail(compiled.device_static.sum(axis=1) < shape.gpu_count, Reason.SELECTOR_MISMATCH)
    fail((cluster.cpu_milli < shape.cpu_milli) | (cluster.memory_mib < shape.memory_mib), Reason.TOO_LARGE)
    fail(~cluster.schedulable, Reason.UNHEALTHY)
    if shape.gpu_count:
        _device_reasons(compiled, fail)
    fail(cluster.cpu_free_milli < shape.cpu_milli, Reason.NO_CPU)
    fail(cluster.memory_free_mib < shape.memory_mib, Reason.NO_HOST_MEMORY)
    if shape.gpu_count and shape.topology_required:
        fail(~compiled.fitting(), Reason.TOPOLOGY)
    return codes


def _device_reasons(compiled: CompiledShape, fail: Callable[[Bools, Reason], None]) -> None:
    """Apply the conditions on devices one after another, and report the nodes that fail.

    The reason of a node is the first condition after which it has too few devices left.

    Args:
        fail: records a reason for the nodes whose entry in the array is True.
    """
    cluster, shape = compiled.cluster, compiled.shape
    rows = np.arange(cluster.node_count)
    left: Bools = np.arange(cluster.width) < cluster.gpu_count[:, None]
    if compiled.device_static is not None:
        left &= compiled.device_static
    left &= cluster.gpu_healthy
    fail(left.sum(axis=1) < shape.gpu_count, Reason.UNHEALTHY)
    left &= compiled.mode_allows(rows)
    fail(left.sum(axis=1) < shape.gpu_count, Reason.MODE_CONFLICT)
    if shape.gpu_slices_max:
        left &= compiled.slices_allow(rows)
        fail(left.sum(axis=1) < shape.gpu_count, Reason.NO_CAPACITY)
    if not shape.mig_profile:
        left &= cluster.gpu_free_milli >= shape.gpu_milli
        fail(left.sum(axis=1) < shape.gpu_count, Reason.NO_CORES)
    known = left & compiled.devices(rows)
    fail(known.sum(axis=1) < shape.gpu_count, Reason.NO_CORES if shape.mig_profile else Reason.NO_MEMORY)
