"""NVIDIA's device plug-in: whole cards, cards shared in turns, and MIG instances.

A MIG instance is a promise of hardware. No card here is cut by MIG yet, and a slice in software keeps another promise,
so such a pod is refused and told what it may ask for instead.
"""

from __future__ import annotations

import re
from typing import NoReturn

from calabash.kubernetes.dialects.protocol import Asking, Dialect
from calabash.kubernetes.names import CORES, MEMORY
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest, ModeName

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG_PREFIX = "nvidia.com/mig-"
_PROFILE = re.compile(r"([1-7])g\.([0-9]{1,3})gb(\S*)")


def _request(asking: Asking) -> GpuRequest:
    asked = [name for name in asking.amounts if asking.has(name) and DIALECT.names(name)]
    for name in asked:
        if name.startswith(MIG_PREFIX):
            refuse_mig(name.removeprefix(MIG_PREFIX), what=name)
    if len(asked) > 1:
        raise CalabashError(
            f"{GPU} and {SHARED} are both asked", hint="whole cards or shared ones: keep one of the two"
        )
    if asked == [SHARED]:
        return GpuRequest(count=asking.count(SHARED), mode=ModeName("timeslice"))
    return GpuRequest(count=asking.count(GPU))


def refuse_mig(profile: str, *, what: str) -> NoReturn:
    """Raise CalabashError(UNKNOWN_MODE) that says what is nearest."""
    match = _PROFILE.fullmatch(profile)
    nearest = f"{MEMORY}: {match[2]}Gi and {CORES}: {int(match[1]) * 100 // 7}" if match else f"{MEMORY} and {CORES}"
    raise CalabashError(
        f"{what} asks for a MIG instance, and no device here is cut by MIG",
        reason=Reason.UNKNOWN_MODE,
        hint=f"a slice kept apart by software is {nearest}; whole devices are kept apart by hardware",
    )


DIALECT = Dialect(
    name="nvidia",
    system="NVIDIA device plug-in",
    resources={
        GPU: "whole cards",
        SHARED: "cards shared in turns, memory not split",
        f"{MIG_PREFIX}<profile>": "refused: no device is cut by MIG",
    },
    prefix=MIG_PREFIX,
    request=_request,
)
