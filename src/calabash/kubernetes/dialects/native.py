"""Our own words: ``calabash.dev/gpus``, ``calabash.dev/memory`` in bytes and ``calabash.dev/cores`` in percent, per device.

They mean what ``calabash run`` means by the same words: a count alone is whole devices, memory alone has best-effort
compute, cores alone bring the same part of the memory.
"""

from __future__ import annotations

from calabash.kubernetes.dialects.protocol import Asking, Dialect
from calabash.kubernetes.objects.names import CORES, GPUS, MEMORY
from calabash.kubernetes.objects.quantity import mib_of
from calabash.model.compute import with_compute
from calabash.model.request import GpuRequest


def _request(asking: Asking) -> GpuRequest:
    memory = mib_of(asking.amounts[MEMORY], what=MEMORY) if asking.has(MEMORY) else None
    amounts = GpuRequest(count=asking.count(GPUS) or 1, memory_mib=memory)
    return with_compute(amounts, core_percent=asking.percent(CORES), policy=None)


DIALECT = Dialect(
    name="native",
    system="Calabash",
    resources={
        GPUS: "devices; 1 where only the others are said",
        MEMORY: "device memory of each, in bytes: `8Gi`",
        CORES: "compute of each, in percent; best-effort where only memory is said",
    },
    order=0,
    request=_request,
)
