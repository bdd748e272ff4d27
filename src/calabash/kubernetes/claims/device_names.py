"""What the devices of a node are called in claims: for each card a name for every way in which it can be given.

A name is of the card's UUID and never of its index, so that it means the same card after a restart, whatever is plugged in.
It is never taken apart again: whoever reads one looks it up among all names of the node's cards.
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
CLASS_RESOURCE = "deviceclass.resource.kubernetes.io/"  # begins the resource name that every device class has
EXTENDED = (
    "extended-resources"  # how the claim is called here that kube-scheduler makes for what containers ask by names
)
OBSERVED = ModeName("observed")  # not given at all: administrators look at the card, whoever has it

# Taints: why a device takes nothing new now.
UNHEALTHY = f"{GROUP}/unhealthy"
CORDONED = f"{GROUP}/cordoned"
STRANGER = f"{GROUP}/stranger"
OTHER_DOOR = f"{GROUP}/other-door"
KEPT = f"{GROUP}/kept"  # an instance stands on the card that nobody may destroy for this one

NOMINAL_GIB = "memoryGiB"  # attribute: the nominal size of a device's memory

_DIGITS = 8
_UUID = re.compile(r"GPU-([0-9a-f]{8})(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A way in which a card can be given by a claim. ``profile`` and ``start`` are of a MIG instance, or of the instance that
    a service of mode ``mps`` serves; "" and -1 for the whole card. ``shared``: several claims can have it at once."""

    name: str
    device: Device
    mode: ModeName
    profile: str = ""
    start: int = -1

    @property
    def shared(self) -> bool:
        """Whether it is divided among claims by amounts."""
        return self.mode in _SHARED


_SHARED = frozenset({VGPU.name, MPS_MODE, TIMESLICE.name})


def card_names(devices: Sequence[Device]) -> Mapping[DeviceUuid, str]:
    """What each card is called: ``gpu-`` and the first eight digits of its UUID; all of a hash where two would be the same."""
    short = {device.uuid: _digits(device.uuid) for device in devices}
    taken = Counter(short.values())
    return {
        uuid: f"gpu-{digits}" if taken[digits] == 1 else f"gpu-{_hashed(uuid)[:32]}" for uuid, digits in short.items()
    }


def claim_devices(devices: Sequence[Device]) -> tuple[ClaimDevice, ...]:
    """All that claims can have of these cards, as far as the cards themselves go; by card, the whole one first.

    Allocators take the first that they find: places of a MIG profile stand in the order of how much they leave open.
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
    """Of an empty card the best first: which keeps the largest profiles possible."""
    if geometry is None:
        return ()

    def left(start: int) -> tuple[tuple[int, ...], int]:
        return open_profiles(geometry, with_instance(MigState(), profile, start)), start

    return sorted(profile.starts, key=left, reverse=True)


def _services(card: str, device: Device) -> Iterator[ClaimDevice]:
    """The service of the card, or those of the instances of a layout that its operator has made for them."""
    layout = [i for i in device.mig_instances if i.fixed] if device.pinned == MPS_MODE else []
    if not layout or device.mig is None:
        yield ClaimDevice(name=f"{card}-mps", device=device, mode=MPS_MODE)
        return
    for instance in sorted(layout, key=lambda i: i.start):
        name = f"{card}-mps-{_word(instance.profile)}-{instance.start}"
        yield ClaimDevice(name=name, device=device, mode=MPS_MODE, profile=instance.profile, start=instance.start)


def _word(profile: str) -> str:
    """A profile's name as a part of one that DNS would take: ``1g.10gb+me`` is ``1g-10gb-me``, ``1g.24gb-me`` is
    ``1g-24gb-no-me``."""
    return profile.lower().replace("-", "-no-").replace("+", "-").replace(".", "-")


def _digits(uuid: str) -> str:
    match = _UUID.fullmatch(uuid.replace("gpu-", "GPU-", 1))
    return match[1] if match else _hashed(uuid)[:_DIGITS]


def _hashed(uuid: str) -> str:
    return hashlib.sha256(uuid.encode()).hexdigest()
