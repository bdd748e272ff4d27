"""Dialect of NVIDIA's device plug-in: whole cards, time-sliced cards, and MIG instances.

A MIG instance is requested by its profile, ``nvidia.com/mig-1g.10gb``, a compute instance by
``nvidia.com/mig-1c.3g.40gb``. The planner partitions cards on demand.
"""

from __future__ import annotations

import re

from calabash.kubernetes.dialects.protocol import Asking, Dialect
from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest, ModeName

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG_PREFIX = "nvidia.com/mig-"
_PROFILE = re.compile(r"((?:[1-9]c\.)?[1-9][0-9]?g\.[1-9][0-9]{0,3}gb)((?:\.[a-z]{2,8}){0,2})")


def _request(asking: Asking) -> GpuRequest:
    asked = [name for name in asking.amounts if asking.has(name) and DIALECT.names(name)]
    if len(asked) > 1:
        raise CalabashError(
            f"{' and '.join(sorted(asked))} are both asked in one container",
            hint="whole cards, shared ones or one MIG profile: keep one of them",
        )
    name = asked[0] if asked else GPU
    if name.startswith(MIG_PREFIX):
        return GpuRequest(count=asking.count(name), mig=_profile(name))
    if name == SHARED:
        return GpuRequest(count=asking.count(SHARED), mode=ModeName("timeslice"))
    return GpuRequest(count=asking.count(GPU))


def _profile(name: str) -> str:
    """Return the profile of a resource name: ``1g.10gb+me`` of ``nvidia.com/mig-1g.10gb.me``.

    Raises:
        CalabashError: the name is not a MIG profile.
    """
    match = _PROFILE.fullmatch(name.removeprefix(MIG_PREFIX))
    if match is None:
        raise CalabashError(f"{name[:128]} is not a MIG profile", hint=f"for example {MIG_PREFIX}1g.10gb")
    return match[1] + match[2].replace(".", "+", 1)


DIALECT = Dialect(
    name="nvidia",
    system="NVIDIA device plug-in",
    resources={
        GPU: "whole cards",
        SHARED: "time-sliced cards, memory not divided",
        f"{MIG_PREFIX}<profile>": "MIG instances of that profile, each on a different card",
    },
    prefix=MIG_PREFIX,
    request=_request,
)
