"""Dialect of Alauda's MPS plug-in: percent of compute and memory of one card."""

from __future__ import annotations

from calabash.kubernetes.dialects.protocol import Asking, Dialect, part_of_cards
from calabash.model.request import GpuRequest

_CORE, _MEMORY = "nvidia.com/mps-core", "nvidia.com/mps-memory"


def _request(asking: Asking) -> GpuRequest:
    unit_mib = asking.settings.alauda_memory_mib
    return part_of_cards(memory_mib=asking.count(_MEMORY) * unit_mib or None, core_percent=asking.percent(_CORE))


DIALECT = Dialect(
    name="alauda",
    system="Alauda MPS plug-in",
    resources={
        _CORE: "compute of the card, in percent; not limited by default",
        _MEMORY: "memory, in GiB (a setting where the cluster counts MiB); by default the same fraction as of the compute",
    },
    request=_request,
)
