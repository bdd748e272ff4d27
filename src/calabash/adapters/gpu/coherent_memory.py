"""Whether the memory of cards is memory of the host as well: on GH200 and GB200, unless the driver keeps it to itself."""

from __future__ import annotations

from contextlib import suppress

import pynvml


def memory_nodes() -> list[int]:
    """NUMA nodes of the host that are memory of cards; none where there is no driver or no such card."""
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
