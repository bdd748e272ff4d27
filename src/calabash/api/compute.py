"""Types of the fields `cores` and `policy` of requests. ``model.compute`` has the rule for fields that are left out."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from calabash.model.request import ComputePolicy

Cores = Annotated[
    int,
    Meta(
        ge=1,
        le=100,
        description="compute share per device in percent; if it is left out and memory is given, the policy is `best-effort`",
    ),
]
Policy = Annotated[
    ComputePolicy,
    Meta(
        description="meaning of the compute share; left out: `best-effort` if memory is given and `cores` is not, otherwise"
        " `fixed`"
    ),
]
