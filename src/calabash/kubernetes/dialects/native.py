"""Calabash's own dialect: ``calabash.dev/gpus``, ``memory`` in bytes and ``cores`` in percent, per device.

The amounts mean the same as in ``calabash run``. A count alone requests whole devices. Memory without cores requests
best-effort compute. Cores without memory request the same percentage of the memory.
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
        GPUS: "devices; 1 if only the other amounts are given",
        MEMORY: "device memory of each, in bytes: `8Gi`",
        CORES: "compute of each, in percent; best-effort if only memory is given",
    },
    order=0,
    request=_request,
)
