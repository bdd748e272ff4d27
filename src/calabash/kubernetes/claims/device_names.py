"""Devices that claims can be allocated, and their names: one for each sharing mode of a card and each MIG instance.

A name is derived from the card's UUID, not from its index, so that it means the same card after a restart or a change
of hardware. Code that reads a name never parses it, but looks it up among the names of the node's cards.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from calabash.kubernetes.objects.names import GROUP
from calabash.model.device import Device, DeviceUuid
from calabash.model.mig import MigGeometry, MigProfile, MigState, open_profiles, with_instance
from calabash.model.request import MIG_MODE, MPS_MODE, VF_MODE, ModeName
from calabash.sharing.exclusive import MODE as EXCLUSIVE
from calabash.sharing.timeslice import MODE as TIMESLICE
from calabash.sharing.vgpu import MODE as VGPU

DRIVER = GROUP
CLASS_RESOURCE = "deviceclass.resource.kubernetes.io/"  # prefix of the resource name that every device class has
EXTENDED = "extended-resources"  # claim created by kube-scheduler for resource names of containers
OBSERVED = ModeName("observed")  # not allocated: administrators observe the card

# Taints: reasons why a device takes no new claims.
UNHEALTHY = f"{GROUP}/unhealthy"
CORDONED = f"{GROUP}/cordoned"
STRANGER = f"{GROUP}/stranger"
OTHER_API = f"{GROUP}/other-door"
KEPT = f"{GROUP}/kept"  # an instance on the card that must not be destroyed is in the way

NOMINAL_GIB = "memoryGiB"  # attribute: nominal size of a device's memory

_DIGITS = 8
_UUID = re.compile(r"GPU-([0-9a-f]{8})(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A device that can be allocated to a claim: a card in one sharing mode, or a MIG instance of it.

    Args:
        name: name of the device in ResourceSlices.
        device: the card.
        mode: sharing mode in which the card is then used.
        profile: profile of the MIG instance, or of the instance that an MPS service uses; "" for the whole card.
        start: first memory slice of that instance; -1 for the whole card.
    """

    name: str
    device: Device
    mode: ModeName
    profile: str = ""
    start: int = -1

    @property
    def shared(self) -> bool:
        """True if several claims can share the device, each with an amount of it."""
        return self.mode in _SHARED


_SHARED = frozenset({VGPU.name, MPS_MODE, TIMESLICE.name})


def card_names(devices: Sequence[Device]) -> Mapping[DeviceUuid, str]:
    """Return the name of each card: ``gpu-`` and the first eight digits of its UUID.

    If two cards would have the same name, both have digits of a hash of their UUIDs instead.
    """
    short = {device.uuid: _digits(device.uuid) for device in devices}
    taken = Counter(short.values())
    return {
        uuid: f"gpu-{digits}" if taken[digits] == 1 else f"gpu-{_hashed(uuid)[:32]}" for uuid, digits in short.items()
    }


def claim_devices(devices: Sequence[Device]) -> tuple[ClaimDevice, ...]:
    """Return all devices of these cards that can be allocated to claims, card by card, the whole card first.

    Allocators choose the first device that matches a request. Among the instances of a MIG profile, those that leave
    the largest other profiles possible therefore come first.
    """
    cards = card_names(devices)
    ordered = sorted(devices, key=lambda device: cards[device.uuid])
    return tuple(one for device in ordered for one in _of_card(cards[device.uuid], device))


def _of_card(card: str, device: Device) -> Iterator[ClaimDevice]:
    yield ClaimDevice(name=card, device=device, mode=EXCLUSIVE.name)
    for mode in (VGPU.name, TIMESLICE.name):
        yield ClaimDevice(name=f"{card}-{mode}", device=device, mode=mode)
    yield from _services(card, device)
    yield ClaimDevice(name=f"{card}-vfio", device=device, mode=VF_MODE)
    yield ClaimDevice(name=f"{card}-{OBSERVED}", device=device, mode=OBSERVED)
    for profile in device.mig.profiles if device.mig is not None else ():
        for start in _starts(device.mig, profile):
            name = f"{card}-mig-{_word(profile.name)}-{start}"
            yield ClaimDevice(name=name, device=device, mode=MIG_MODE, profile=profile.name, start=start)


def _starts(geometry: MigGeometry | None, profile: MigProfile) -> Sequence[int]:
    """Return the first memory slices at which an instance of a profile can be placed on an empty card.

    The placement that leaves the largest other profiles possible is first.
    """
    if geometry is None:
        return ()

    def profiles_left(start: int) -> tuple[tuple[int, ...], int]:
        return open_profiles(geometry, with_instance(MigState(), profile, start)), start

    return sorted(profile.starts, key=profiles_left, reverse=True)


def _services(card: str, device: Device) -> Iterator[ClaimDevice]:
    """Yield the devices of the card that are used with MPS: the whole card, or MIG instances.

    If an operator has created MIG instances for MPS, there is one device for each of these instances. Otherwise the
    only device is the whole card.
    """
    layout = [i for i in device.mig_instances if i.fixed] if device.pinned == MPS_MODE else []
    if not layout or device.mig is None:
        yield ClaimDevice(name=f"{card}-mps", device=device, mode=MPS_MODE)
        return
    for instance in sorted(layout, key=lambda i: i.start):
        name = f"{card}-mps-{_word(instance.profile)}-{instance.start}"
        yield ClaimDevice(name=name, device=device, mode=MPS_MODE, profile=instance.profile, start=instance.start)


def _word(profile: str) -> str:
    """Return the name of a MIG profile in a form that a DNS label may contain.

    ``1g.10gb+me`` becomes ``1g-10gb-me`` and ``1g.24gb-me`` becomes ``1g-24gb-no-me``.
    """
    return profile.lower().replace("-", "-no-").replace("+", "-").replace(".", "-")


def _digits(uuid: str) -> str:
    match = _UUID.fullmatch(uuid.replace("gpu-", "GPU-", 1))
    return match[1] if match else _hashed(uuid)[:_DIGITS]


def _hashed(uuid: str) -> str:
    return hashlib.sha256(uuid.encode()).hexdigest()
