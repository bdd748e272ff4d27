"""Dialect of Bitfusion: whole cards, or a percentage or an amount of the memory of each."""

from __future__ import annotations

from calabash.kubernetes.dialects.protocol import Asking, Dialect, fraction_of_cards, part_of_cards
from calabash.kubernetes.objects.quantity import mib_of
from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest

_AMOUNT, _NUMBER, _PERCENT, _MEMORY = (f"bitfusion.io/gpu-{word}" for word in ("amount", "num", "percent", "memory"))


def _request(asking: Asking) -> GpuRequest:
    amount, number, percent = asking.count(_AMOUNT), asking.count(_NUMBER), asking.percent(_PERCENT)
    if amount and number and amount != number:
        raise CalabashError(f"{_AMOUNT} {amount} and {_NUMBER} {number} are both asked", hint="keep one of the two")
    count = amount or number or 1
    if not asking.has(_MEMORY):
        return fraction_of_cards(count, 10 * (percent or 100))
    if percent:
        raise CalabashError(f"{_PERCENT} {percent} and {_MEMORY} are both asked", hint="keep one of the two")
    return part_of_cards(count, memory_mib=mib_of(asking.amounts[_MEMORY], what=_MEMORY))


DIALECT = Dialect(
    name="bitfusion",
    system="VMware Bitfusion",
    resources={
        _AMOUNT: "cards; 1 if only the other amounts are given",
        _NUMBER: "the same in older versions",
        _PERCENT: "percentage of each card's memory; the same of its compute is guaranteed, idle compute can be used",
        _MEMORY: "memory of each card, in bytes: `8000M`; compute is not limited",
    },
    request=_request,
)
