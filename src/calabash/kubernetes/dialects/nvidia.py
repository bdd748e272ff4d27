"""NVIDIA's device plug-in: whole cards, cards shared in turns, and MIG instances.

A MIG instance is asked for by its profile, ``nvidia.com/mig-1g.10gb``, or a part of one, ``nvidia.com/mig-1c.3g.40gb``; cards
are cut for it as demand wants.
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
    """``1g.10gb+me`` of ``nvidia.com/mig-1g.10gb.me``: names of resources have no plus. Raises CalabashError."""
    match = _PROFILE.fullmatch(name.removeprefix(MIG_PREFIX))
    if match is None:
        raise CalabashError(f"{name[:128]} names no MIG profile", hint=f"for example {MIG_PREFIX}1g.10gb")
    return match[1] + match[2].replace(".", "+", 1)


DIALECT = Dialect(
    name="nvidia",
    system="NVIDIA device plug-in",
    resources={
        GPU: "whole cards",
        SHARED: "cards shared in turns, memory not split",
        f"{MIG_PREFIX}<profile>": "MIG instances of that profile, each on another card",
    },
    prefix=MIG_PREFIX,
    request=_request,
)
