"""What the API says of a simulated node: its cards with their faults, and a fault that is to happen."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply


class SimulatedCard(Reply, kw_only=True, frozen=True):
    """A simulated card with its books, which no real driver would show. ``slow_percent`` 100 is its own speed."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    used_mib: int
    busy_s: float
    kernels: int
    lost: bool
    slow_percent: int
    ecc_double: int
    xids: list[int]


class SimulatedNode(Reply, kw_only=True, frozen=True):
    """The simulated node that the pool runs on; ``name`` is empty, and there are no cards, where its cards are real."""

    name: str
    driver: str
    cards: list[SimulatedCard]


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A fault of a simulated card."""

    gpu: Annotated[str, Meta(pattern=r"^(all|[0-9]{1,4}|[A-Za-z0-9-]{5,64})\Z", description="index, UUID, or `all`")]
    fault: Annotated[
        str,
        Meta(pattern=r"^[a-z][a-z-]{0,31}\Z", description="`xid`, `ecc-double`, `lost`, `slow`, `throttle`, `recover`"),
    ]
    value: Annotated[
        str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9%._-]{0,31})?\Z", description="such as `79` or `300%`")
    ] = ""
