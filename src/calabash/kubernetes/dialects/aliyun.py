"""Dialect of Alibaba's gpushare and cGPU: total memory, divided evenly among the number of cards in a label."""

from __future__ import annotations

from calabash.kubernetes.dialects.protocol import Asking, Dialect, part_of_cards
from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest

_MEMORY, _CORE, _COUNT = (f"aliyun.com/gpu-{word}" for word in ("mem", "core.percentage", "count"))


def _request(asking: Asking) -> GpuRequest:
    memory, core = asking.count(_MEMORY), asking.percent(_CORE)
    count = asking.count(_COUNT) or _labelled(asking)
    if not memory and not core:
        return GpuRequest(count=count)
    if memory % count:
        raise CalabashError(
            f"{_MEMORY} {memory} cannot be divided evenly among {count} cards", hint=f"ask for a multiple of {count}"
        )
    if core and count > 1:
        raise CalabashError(
            f"{_CORE} {core} with {count} cards: compute can be limited on one card only",
            hint=f"remove {_CORE}, or ask for one card",
        )
    unit_mib = asking.settings.aliyun_memory_mib
    return part_of_cards(count, memory_mib=memory // count * unit_mib or None, core_percent=core)


def _labelled(asking: Asking) -> int:
    text = asking.pod.labels.get(_COUNT, "1")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 64:
        raise CalabashError(f"label {_COUNT} {text[:64]!r} is out of range", hint="1 to 64 cards")
    return int(text)


DIALECT = Dialect(
    name="aliyun",
    system="Alibaba gpushare and cGPU",
    resources={
        _MEMORY: "total memory, in GiB (a setting where the cluster counts MiB)",
        _CORE: "compute of the card, in percent; not limited by default",
        _COUNT: "cards that the memory is divided among; alone, whole cards",
    },
    annotations={_COUNT: "as a label of the pod: cards that the memory is divided among"},
    request=_request,
)
