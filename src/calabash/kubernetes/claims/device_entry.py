"""Entry of a device in a ResourceSlice: attributes, capacity, and consumption of its card's counters.

Theory of operation. A card is offered as several devices, one for each sharing mode and for each possible MIG instance.
Shared counters keep them apart: each card has one counter set, with one counter for each memory slice, one for the
compute slices and one for the media engine. (A card without MIG has a single counter.) The device of a MIG instance
consumes what the instance occupies. Every other device consumes all counters of the card, so that a card is never
allocated in two modes at once, and two MIG instances are allocated together exactly if both fit on the card. A device
that several claims share is charged once, when its first claim is allocated. The device with which administrators
observe a card consumes nothing, because the allocator charges counters for admin access too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from calabash.adapters.kube.objects.claims import (
    CapacityRange,
    CapacityRequestPolicy,
    CounterConsumption,
    CounterSet,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounter,
    DeviceTaint,
    SliceDevice,
)
from calabash.kubernetes.claims.capacity import CORES, MEMORY, SLICES, STEP_MIB, reserve_mib, turns_mib
from calabash.kubernetes.claims.device_names import NOMINAL_GIB, OBSERVED, ClaimDevice
from calabash.model.device import Device
from calabash.model.mig import MigProfile, memory_mask
from calabash.model.nominal import nominal_memory_mib
from calabash.model.request import MIG_MODE, MPS_MODE, VF_MODE
from calabash.sharing.exclusive import MODE as EXCLUSIVE
from calabash.sharing.mps import CLIENTS_MAX
from calabash.sharing.timeslice import MODE as TIMESLICE
from calabash.sharing.timeslice import replicas_of
from calabash.sharing.vgpu import SLICES_MAX

NVIDIA = "gpu.nvidia.com"
_TEXT_MAX = 64
_NVIDIA_TYPES = {EXCLUSIVE.name: "gpu", MIG_MODE: "mig", VF_MODE: "vfio"}
_ARCHITECTURES = {
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 6): "Ampere",
    (8, 7): "Ampere",
    (8, 9): "Ada Lovelace",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (10, 3): "Blackwell",
    (12, 0): "Blackwell",
}
_PCI = re.compile(r"(?:[0-9a-fA-F]{4})?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedCard:
    """Facts about a card that are not in its ``Device``; "" if unknown.

    Args:
        name: name of the card in ResourceSlices.
        island: name of the group of cards that NVLink connects with this one; "" for none.
        pcie_root: PCIe root complex of the card.
        driver_version, cuda_version: version of the GPU driver, and the newest version of CUDA that it supports.
    """

    name: str
    island: str = ""
    pcie_root: str = ""
    driver_version: str = ""
    cuda_version: str = ""


def slice_device(
    found: ClaimDevice, facts: OfferedCard, *, taints: tuple[DeviceTaint, ...], counters: bool
) -> SliceDevice:
    """Return the entry of a device in a ResourceSlice.

    Args:
        found: the device: a card in one sharing mode, or a MIG instance.
        facts: facts about its card.
        taints: taints that keep new claims from the device.
        counters: True to state the consumption of the card's counters; False if the counters are not published.
    """
    return SliceDevice(
        name=found.name,
        attributes=_attributes(found, facts),
        capacity=_capacity(found),
        consumes_counters=(CounterConsumption(counter_set=facts.name, counters=_taken(found)),)
        if counters and found.mode != OBSERVED
        else (),
        taints=taints,
        allow_multiple_allocations=True if found.shared else None,
    )


def counter_set(card: str, device: Device) -> CounterSet:
    """Return the counter set of a card with its total amounts.

    Args:
        card: name of the card in ResourceSlices.
    """
    return CounterSet(name=card, counters=_counters(_all(device)))


def semantic_version(text: str) -> str:
    """Return a version as three numbers without leading zeros, as semver requires: ``535.104.5`` for ``535.104.05``.

    Returns "" if the text begins with no number.
    """
    numbers = re.findall(r"[0-9]{1,9}", re.split(r"[,+ -]", text.strip(), maxsplit=1)[0])[:3]
    return ".".join(str(int(n)) for n in (*numbers, "0", "0")[:3]) if numbers else ""


def _attributes(found: ClaimDevice, facts: OfferedCard) -> dict[str, DeviceAttribute]:
    device, profile = found.device, _profile(found)
    capability = ".".join(str(n) for n in (*device.compute_capability, 0)) if any(device.compute_capability) else ""
    pci = _PCI.fullmatch(device.pci_bus_id)
    texts = {
        "mode": found.mode,
        "vendor": device.vendor,
        "model": device.model,
        "uuid": device.uuid,
        "island": facts.island,
        "profile": found.profile,
        "resource.kubernetes.io/pcieRoot": facts.pcie_root,
        "resource.kubernetes.io/pciBusID": pci[1].lower() if pci else "",
    }
    versions = {
        "driverVersion": semantic_version(facts.driver_version),
        "cudaDriverVersion": semantic_version(facts.cuda_version),
        "computeCapability": capability,
    }
    kind = _NVIDIA_TYPES.get(found.mode, "")
    if kind and device.vendor == "nvidia":
        texts |= {
            f"{NVIDIA}/type": kind,
            f"{NVIDIA}/productName": device.model,
            f"{NVIDIA}/architecture": _ARCHITECTURES.get(device.compute_capability, ""),
            f"{NVIDIA}/{'parentUUID' if profile else 'uuid'}": device.uuid,
            f"{NVIDIA}/profile": profile.name if profile else "",
        }
        versions |= {
            f"{NVIDIA}/cudaComputeCapability": versions["computeCapability"],
            f"{NVIDIA}/driverVersion": versions["driverVersion"],
            f"{NVIDIA}/cudaDriverVersion": versions["cudaDriverVersion"],
        }
    nominal_mib = nominal_memory_mib(profile.memory_mib, profile.name) if profile else device.nominal_memory_mib
    numbers = {
        "index": device.index,
        "numaNode": device.numa_node,
        "start": found.start,
        NOMINAL_GIB: nominal_mib // 1024,
    }
    return (
        {name: DeviceAttribute(string=text[:_TEXT_MAX]) for name, text in texts.items() if text}
        | {name: DeviceAttribute(version=version) for name, version in versions.items() if version}
        | {name: DeviceAttribute(int_=number) for name, number in numbers.items() if number >= 0}
    )


def _capacity(found: ClaimDevice) -> dict[str, DeviceCapacity]:
    if found.mode == OBSERVED:
        return {}
    if not found.shared:
        return _undivided(found)
    device, profile = found.device, _profile(found)
    reserve, cores, percent = reserve_mib(found.mode), 0, 100
    memory_mib, places = device.memory_mib, SLICES_MAX
    if found.mode == TIMESLICE.name:
        turns = {MEMORY: _memory(turns_mib(device), least_mib=0, default_mib=0)}
        return turns | {SLICES: _one_of(replicas_of(device))}
    if found.mode == MPS_MODE:
        places, cores = CLIENTS_MAX, 1
        if profile is not None and device.mig is not None:
            memory_mib, percent = profile.memory_mib, 100 * profile.compute // device.mig.compute
    least_mib = reserve + STEP_MIB
    most_mib = reserve + (memory_mib - reserve) // STEP_MIB * STEP_MIB
    share = CapacityRange(min=str(cores), step="1")
    return {
        MEMORY: _memory(memory_mib, least_mib=least_mib, default_mib=max(least_mib, most_mib)),
        CORES: DeviceCapacity(
            value=str(percent),
            request_policy=CapacityRequestPolicy(default=str(percent if cores else 0), valid_range=share),
        ),
        SLICES: _one_of(places),
    }


def _undivided(found: ClaimDevice) -> dict[str, DeviceCapacity]:
    device, profile = found.device, _profile(found)
    memory_mib, percent, processors = device.memory_mib, 100, device.multiprocessor_count
    if profile is not None and device.mig is not None:
        memory_mib, percent = profile.memory_mib, max(1, 100 * profile.compute // device.mig.compute)
        processors = processors * profile.compute // device.mig.compute
    sizes = {MEMORY: _quantity(memory_mib), CORES: str(percent)}
    if device.vendor == "nvidia":
        sizes[f"{NVIDIA}/memory"] = _quantity(memory_mib)
        if processors:
            sizes[f"{NVIDIA}/multiprocessors"] = str(processors)
    return {name: DeviceCapacity(value=value) for name, value in sizes.items()}


def _memory(value_mib: int, *, least_mib: int, default_mib: int) -> DeviceCapacity:
    steps = CapacityRange(min=_quantity(least_mib), step=_quantity(STEP_MIB))
    policy = CapacityRequestPolicy(default=_quantity(default_mib), valid_range=steps)
    return DeviceCapacity(value=_quantity(value_mib), request_policy=policy)


def _one_of(places: int) -> DeviceCapacity:
    """Return the capacity that limits the number of shares: each share of the device consumes 1 of ``places``."""
    return DeviceCapacity(value=str(places), request_policy=CapacityRequestPolicy(default="1", valid_values=("1",)))


def _quantity(mib: int) -> str:
    """Return an amount in MiB as a quantity, in the form in which the API server returns it.

    Slices that were read back can then be compared with those that were written.
    """
    amount, units = mib, ["Mi", "Gi", "Ti", "Pi"]
    while amount and amount % 1024 == 0 and len(units) > 1:
        amount, units = amount // 1024, units[1:]
    return f"{amount}{units[0]}" if amount else "0"


def _taken(found: ClaimDevice) -> dict[str, DeviceCounter]:
    profile = _profile(found)
    return _counters(_all(found.device) if profile is None else _of_instance(profile, found.start))


def _profile(found: ClaimDevice) -> MigProfile | None:
    return found.device.mig.profile(found.profile) if found.profile and found.device.mig is not None else None


def _all(device: Device) -> dict[str, int]:
    geometry = device.mig
    if geometry is None:
        return {"card": 1}
    media = {"media": 1} if any(p.media for p in geometry.profiles) else {}
    return {f"memory-{i}": 1 for i in range(geometry.slices)} | {"compute": geometry.compute} | media


def _of_instance(profile: MigProfile, start: int) -> dict[str, int]:
    run = memory_mask(profile, start)
    slices = {f"memory-{i}": 1 for i in range(run.bit_length()) if run >> i & 1}
    return slices | {"compute": profile.compute} | ({"media": 1} if profile.media else {})


def _counters(amounts: Mapping[str, int]) -> dict[str, DeviceCounter]:
    return {name: DeviceCounter(value=str(amount)) for name, amount in amounts.items()}
