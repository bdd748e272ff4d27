"""How requests name compute; what is left out is for the rule of ``model.compute``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from calabash.model.request import ComputePolicy

Cores = Annotated[
    int,
    Meta(
        ge=1,
        le=100,
        description="compute share per device in percent; left out with an amount of memory, the compute is `best-effort`",
    ),
]
Policy = Annotated[
    ComputePolicy,
    Meta(
        description="what the compute share means; left out: `best-effort` where memory is named and `cores` is not, else"
        " `fixed`"
    ),
]
