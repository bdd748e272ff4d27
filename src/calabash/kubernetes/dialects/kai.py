"""Dialect of KAI Scheduler and Run:ai: a fraction of cards, or an amount of their memory, in annotations of the pod.

The annotations hold for one container: the first one, or the one that ``gpu-fraction-container-name`` names. They are
read only in pods that name one of these two schedulers or have its queue label, because other systems may use an
annotation ``gpu-memory`` too. Whole cards are requested by NVIDIA's resource ``nvidia.com/gpu``.
"""

from __future__ import annotations

import re
from fractions import Fraction

from calabash.kubernetes.dialects.protocol import Asking, Dialect, fraction_of_cards, part_of_cards
from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest

_QUEUES = ("kai.scheduler/queue", "runai/queue")
_FRACTION, _MEMORY, _DEVICES, _CONTAINER = (
    "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name",
)  # fmt: skip
_SCHEDULERS = frozenset({"kai-scheduler", "runai-scheduler"})
_DECIMAL = re.compile(r"[0-9]{0,3}\.?[0-9]{1,15}", re.ASCII)
_INTEGER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def _request(asking: Asking) -> GpuRequest:
    fraction, memory, devices = asking.annotation(_FRACTION), asking.annotation(_MEMORY), asking.annotation(_DEVICES)
    count = _integer(devices, what=_DEVICES) if devices else 1
    if fraction and memory:
        raise CalabashError(
            f"{_FRACTION} {fraction[:32]!r} and {_MEMORY} {memory[:32]!r} are both asked", hint="keep one"
        )
    if memory:
        return part_of_cards(count, memory_mib=_integer(memory, what=_MEMORY))
    milli = int(Fraction(fraction) * 1000) if _DECIMAL.fullmatch(fraction) else 0
    if not 1 <= milli <= 1000:
        raise CalabashError(
            f"{_FRACTION} {fraction[:32]!r} is not a fraction of a card",
            hint="write a number from 0.001 to 1, like 0.5",
        )
    return fraction_of_cards(count, milli)


def _integer(text: str, *, what: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise CalabashError(f"{what} {text[:32]!r} is out of range", hint="write a whole number from 1")
    return int(text)


def _applies(asking: Asking) -> bool:
    pod = asking.pod
    meant = pod.spec.scheduler_name in _SCHEDULERS or any(label in pod.labels for label in _QUEUES)
    if not meant or not asking.annotation(_FRACTION, _MEMORY) or not pod.spec.containers:
        return False
    return asking.container == (asking.annotation(_CONTAINER) or pod.spec.containers[0].name)


DIALECT = Dialect(
    name="kai",
    system="KAI Scheduler, Run:ai",
    resources={},
    annotations={
        _FRACTION: "fraction of each card's memory, `0.5`; the same of its compute is guaranteed, idle compute can be used",
        _MEMORY: "memory of each card, in MiB; compute is not limited",
        _DEVICES: "cards; 1 by default",
        _CONTAINER: "container that gets the devices; the first by default",
    },
    asked_by=(_FRACTION, _MEMORY),
    queues=_QUEUES,
    schedulers=_SCHEDULERS,
    order=90,  # last: dialects with resource names have precedence over annotations alone
    request=_request,
    also=_applies,
)
