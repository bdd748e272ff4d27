"""Health of tokens: what the kubelet tells of the devices of a pod, and how many more it may hand out.

A token means nothing until its container starts; from then on it stands for one of the container's devices: the tokens in
order for the slices of the plan in order. So a token in use is as ill as its device, or as the part of it that the slice is,
such as a MIG device; the kubelet writes that into the pod's ``allocatedResourcesStatus``. Tokens that nobody has stand for
room: as many of them are healthy as the healthy cards can still bear. Schedulers count the pods on what is ill as well,
whose tokens are no longer healthy; for each of those one more is left.

A card that has missed one question is not ill yet; nothing new is placed on it, but nobody is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from calabash.adapters.kubelet.protocol import CheckpointEntry, PluginDevice
from calabash.kubernetes.node_plugin.containers.device_ids import token_ids
from calabash.model.allocation import AllocationRecord
from calabash.model.device import OUT_OF_SERVICE, Device, DeviceUuid
from calabash.model.request import AllocationId
from calabash.node.membership.container import container_allocation
from calabash.sharing.vgpu import SLICES_MAX

Parts = Mapping[AllocationId, Collection[int]]
"""Allocations with slices that are ill by themselves, by the slices' places in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTokens:
    """Tokens of one container; ``devices`` is empty until it has started, ``ill`` are the places of those whose part is ill."""

    tokens: tuple[str, ...]
    devices: tuple[DeviceUuid, ...] = ()
    ill: frozenset[int] = frozenset()


def held_tokens(
    entries: Iterable[CheckpointEntry],
    record: Callable[[AllocationId], AllocationRecord | None],
    parts: Parts | None = None,
) -> list[HeldTokens]:
    """Who holds what, by the kubelet's checkpoint and what the agent has granted. ``parts``: those that are ill."""
    found = []
    for entry in entries:
        name = container_allocation(entry.pod_uid, entry.container)
        granted = record(name)
        devices = tuple(s.device for s in granted.placement.slices) if granted is not None else ()
        ill = frozenset((parts or {}).get(name, ()))
        found.append(HeldTokens(tokens=entry.device_ids, devices=devices, ill=ill))
    return found


def any_ill(devices: Iterable[Device]) -> bool:
    """Whether tokens differ in health, so that it must be known whose they are."""
    return any(device.health in OUT_OF_SERVICE for device in devices)


def token_health(
    devices: Sequence[Device], held: Iterable[HeldTokens], *, gives: bool = True, apart: Collection[DeviceUuid] = ()
) -> list[PluginDevice]:
    """All tokens of the node with their health.

    Args:
        devices: all cards.
        held: tokens in use; may be left out while no card is ill and ``gives``.
        gives: whether the node gives out anything new.
        apart: cards that tokens do not give, as those that claims have.
    """
    ill = {device.uuid for device in devices if device.health in OUT_OF_SERVICE}
    taken: set[str] = set()
    sick: set[str] = set()
    for one in held:
        tokens = sorted(one.tokens)
        taken.update(tokens)
        having = enumerate(zip(tokens, one.devices, strict=False))
        sick.update(token for place, (token, device) in having if device in ill or place in one.ill)
    borne = (len(devices) - len(ill.union(apart))) * SLICES_MAX
    room = borne - len(taken - sick) + len(sick) if gives and borne else 0
    answer = []
    for name in token_ids(len(devices)):
        healthy = name not in sick if name in taken else room > 0
        room -= healthy and name not in taken
        answer.append(PluginDevice(id=name, healthy=healthy))
    return answer
