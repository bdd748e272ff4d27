"""NUMA nodes of the host that are GPU memory.

Only GH200 and GB200 have such nodes, and only if the driver exposes GPU memory to the host.
"""

from __future__ import annotations

from contextlib import suppress

import pynvml


def memory_nodes() -> list[int]:
    """Return the NUMA nodes of the host that are memory of cards; [] without a driver or such a card."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found: list[int] = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):
                found.append(int(pynvml.nvmlDeviceGetNumaNodeId(pynvml.nvmlDeviceGetHandleByIndex(index))))
    except pynvml.NVMLError:
        return found
    finally:
        pynvml.nvmlShutdown()
    return sorted(node for node in found if node >= 0)
