"""Message types of MIG: existing instances and profiles of devices, fixed layouts, and planned positions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.api.replies import Reply


class MigProfileView(Reply, kw_only=True, frozen=True):
    """MIG profile of a device.

    ``starts``: first memory slices at which one more instance is possible now, including those for which idle instances would
    be destroyed.
    """

    name: str
    memory_mib: int
    compute: int
    slices: int
    starts: list[int]


class MigPartView(Reply, kw_only=True, frozen=True):
    """Compute instance. ``start`` is its first compute slice in the GPU instance; ``allocation`` is empty if it is not used."""

    profile: str
    start: int
    compute: int
    uuid: str
    allocation: str


class MigInstanceView(Reply, kw_only=True, frozen=True):
    """Existing GPU instance of a device.

    ``state``: ``used`` by ``allocations``, ``idle``, ``fixed`` (idle, and never destroyed), or ``foreign`` (used by unmanaged
    processes). ``parts``: its compute instances, if it is divided; they share its memory.
    """

    profile: str
    start: int
    slices: int
    compute: int
    memory_mib: int
    uuid: str
    state: str
    allocations: list[str]
    parts: list[MigPartView] = msgspec.field(default_factory=list)


class MigCardView(Reply, kw_only=True, frozen=True):
    """Device that supports MIG. ``slices``: number of memory slices. ``pinned``: the only mode that the operator allows."""

    uuid: str
    index: int
    model: str
    mode: str
    pinned: str
    enabled: bool
    slices: int
    compute: int
    compute_free: int
    instances: list[MigInstanceView]
    profiles: list[MigProfileView]


class MigCards(Reply, kw_only=True, frozen=True):
    items: list[MigCardView]


class MigPlaceView(Reply, kw_only=True, frozen=True):
    """Position of a MIG instance.

    ``device_index``: -1 if no position is possible. ``start``: first memory slice. ``reused``: an idle GPU instance is reused.
    ``destroyed``: idle instances that are destroyed for it. ``part``: first compute slice of a compute instance; -1 for a whole
    GPU instance. ``shared``: the GPU instance has other compute instances.
    """

    profile: str
    device: str
    device_index: int
    start: int
    reused: bool
    destroyed: list[str]
    part: int = -1
    shared: bool = False


class MigPlaces(Reply, kw_only=True, frozen=True):
    items: list[MigPlaceView]


class WantedInstance(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """MIG instance of a layout."""

    profile: Annotated[str, Meta(min_length=1, max_length=32, description="profile, for example `1g.10gb`")]
    start: Annotated[
        int, Meta(ge=-1, le=63, description="first memory slice; -1: the position with which all instances fit best")
    ] = -1


class WantedCard(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """MIG layout of one device."""

    device: Annotated[str, Meta(min_length=1, max_length=128, description="number or UUID of the device")]
    instances: Annotated[list[WantedInstance], Meta(max_length=64, description="empty: remove the fixed layout")] = []


class MigLayout(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Fixed MIG layouts of idle devices. All are checked before the first device is changed."""

    cards: Annotated[list[WantedCard], Meta(min_length=1, max_length=64)]
    check: Annotated[bool, Meta(description="change nothing, and return the result of the change")] = False


class MigQuestion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Question: the positions of MIG instances if these profiles were requested now, one after the other."""

    profiles: Annotated[list[Annotated[str, Meta(min_length=1, max_length=32)]], Meta(min_length=1, max_length=64)]
