"""Dialect of Tencent's qGPU: total compute in hundredths of a card, and total memory in GiB.

An amount of compute above 100 is spread over the smallest sufficient number of cards. Compute and memory are divided
evenly among them.
"""

from __future__ import annotations

from dataclasses import replace

from calabash.kubernetes.dialects.protocol import Asking, Dialect, part_of_cards
from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, GpuRequest

_PREFIX = "tke.cloud.tencent.com"
_CORE, _MEMORY, _GREEDY, _CLASS = (
    f"{_PREFIX}/{word}" for word in ("qgpu-core", "qgpu-memory", "qgpu-core-greedy", "app-class")
)
_GIB = 1024
_POLICIES = {"offline": ComputePolicy.BEST_EFFORT, "online": ComputePolicy.BURST}


def _request(asking: Asking) -> GpuRequest:
    core, greedy, memory = asking.count(_CORE), asking.count(_GREEDY), asking.count(_MEMORY)
    if core and greedy:
        raise CalabashError(f"{_CORE} {core} and {_GREEDY} {greedy} are both asked", hint="keep one of the two")
    total = core or greedy
    if total and total % 100 == 0 and not greedy and (memory == 0 or total > 100):
        return GpuRequest(count=total // 100)
    count = max(1, -(-total // 100))
    request = part_of_cards(
        count,
        memory_mib=_each(memory, count, what=_MEMORY) * _GIB or None,
        core_percent=_each(total, count, what=_CORE) or None,
    )
    policy = ComputePolicy.BEST_EFFORT if greedy else _POLICIES.get(asking.annotation(_CLASS), request.policy)
    return replace(request, policy=policy)


def _each(total: int, count: int, *, what: str) -> int:
    """Return the amount for each of ``count`` cards; the division is rounded down, as in qGPU.

    Raises:
        CalabashError: each card would get less than one unit; ``what`` names the amount in the message.
    """
    if total and total < count:
        raise CalabashError(f"{what} {total} cannot be divided among {count} cards", hint=f"ask for at least {count}")
    return total // count


DIALECT = Dialect(
    name="qgpu",
    system="Tencent qGPU",
    resources={
        _CORE: "hundredths of cards: 30 is a fraction of one, 200 are two whole cards, 160 are two times 80",
        _MEMORY: "total memory, in GiB; by default the same fraction as of the compute",
        _GREEDY: "like `qgpu-core`, but only compute that other containers leave idle",
    },
    annotations={_CLASS: "`offline`: only compute that other containers leave idle; `online`: idle compute as well"},
    request=_request,
)
