"""Dialect of Tencent's vCUDA (gpu-manager): compute in hundredths of a card, and memory in blocks of 256 MiB."""

from __future__ import annotations

from dataclasses import replace

from calabash.kubernetes.dialects.protocol import Asking, Dialect, part_of_cards
from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, GpuRequest

_CORE, _MEMORY, _LIMIT = (f"tencent.com/vcuda-{word}" for word in ("core", "memory", "core-limit"))
_BLOCK_MIB = 256


def _request(asking: Asking) -> GpuRequest:
    core, blocks = asking.count(_CORE), asking.count(_MEMORY)
    if core >= 100:
        if core % 100:
            raise CalabashError(
                f"{_CORE} {core} is neither a fraction of one card nor a multiple of 100",
                hint="ask for 1 to 99, or a multiple of 100",
            )
        return GpuRequest(count=core // 100)
    request = part_of_cards(memory_mib=blocks * _BLOCK_MIB or None, core_percent=core or None)
    limit = asking.annotation(_LIMIT)
    if not limit:
        return request
    if not limit.isascii() or not limit.isdigit() or not core <= int(limit[:9]) <= 100:
        raise CalabashError(
            f"{_LIMIT} {limit[:64]!r} is not between {_CORE} {core} and 100", hint="write a percentage of one card"
        )
    return replace(request, policy=ComputePolicy.BURST) if core and int(limit) > core else request


DIALECT = Dialect(
    name="vcuda",
    system="Tencent vCUDA (gpu-manager)",
    resources={
        _CORE: "hundredths of a card: 30 is a fraction of one, 200 are two whole cards",
        _MEMORY: "memory in blocks of 256 MiB; by default the same fraction as of the compute",
    },
    annotations={_LIMIT: "above the core amount: idle compute as well"},
    request=_request,
)
