"""Sharing mode ``passthrough``: a virtual machine has a whole device or a virtual function of it, without a driver on the host.

The IOMMU isolates tenants: it restricts the memory that a device can access. It isolates IOMMU groups rather than single
devices, so a device can be assigned only together with all devices of its group. This module decides if a group can be
assigned, by the rule of the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from calabash.model.device import Device, VfProfile
from calabash.model.errors import Reason
from calabash.model.request import VF_MODE, ComputePolicy, GpuRequest, Isolation, Slice
from calabash.model.units import format_mib
from calabash.sharing.protocol import Charge, DeviceOccupancy, Edits, HeldSlice, Misfit

RESOURCE = "calabash.dev/gpus"  # device name in KubeVirt virtual machines
_GROUP_SAFE_DRIVERS = frozenset({"pcieport", "pci-stub"})  # host drivers that allow the group to be assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """PCI function in an IOMMU group.

    Args:
        address: PCI address.
        driver: its driver; "" for none.
        bridge: it is a PCI bridge.
        vfio: a VFIO driver is bound to it.
    """

    address: str
    driver: str
    bridge: bool = False
    vfio: bool = False


def card_functions(members: Sequence[GroupMember], address: str) -> tuple[str, ...]:
    """Return the PCI addresses of the other functions of a card, such as audio, which are assigned together with it.

    Args:
        members: functions in the card's IOMMU group.
        address: PCI address of one function of the card, which is left out.
    """
    card = address.rpartition(".")[0]
    return tuple(
        m.address for m in members if m.address != address and not m.bridge and m.address.rpartition(".")[0] == card
    )


def iommu_group_obstacle(members: Sequence[GroupMember], ours: Collection[str]) -> str:
    """Return the reason for which an IOMMU group cannot be assigned to a virtual machine; "" if it can.

    Every member must be in ``ours``, or be a bridge, or have no driver, or have a driver of ``_GROUP_SAFE_DRIVERS``. Another
    member with a VFIO driver belongs to another virtual machine, and a group can belong to one virtual machine only.

    Args:
        ours: PCI addresses of the functions to assign.
    """
    others = [m for m in members if m.address not in ours and not m.bridge]
    taken = [m.address for m in others if m.vfio]
    if taken:
        return f"{', '.join(taken)} of the same IOMMU group is assigned to another virtual machine"
    busy = [f"{m.address} ({m.driver})" for m in others if m.driver and m.driver not in _GROUP_SAFE_DRIVERS]
    return f"{', '.join(busy)} of the same IOMMU group is used by the host" if busy else ""


def kubevirt_variable(resource: str, *, mediated: bool = False) -> str:
    """Return the environment variable from which KubeVirt reads the devices of a resource.

    Args:
        mediated: the devices are mediated devices instead of PCI devices.
    """
    name = resource.upper().replace("/", "_").replace(".", "_")
    return f"{'MDEV_' if mediated else ''}PCI_RESOURCE_{name}"


def vendor_resource(model: str) -> str:
    """Return the resource name that NVIDIA's device plugin for KubeVirt uses for a device model."""
    words = "".join("_" if c in " /." else c for c in model.upper())
    return "nvidia.com/" + "".join(c for c in words if c.isalnum() or c in "_-")


class Passthrough:
    """Mode ``passthrough``: a whole device, or virtual functions of one profile."""

    name = VF_MODE
    isolation = Isolation.HARDWARE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only if requested by name or by a virtual function, which implies the mode

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        if any(instance.fixed or instance.foreign for instance in device.mig_instances):
            return Misfit(
                reason=Reason.MODE_CONFLICT, message="has MIG instances, and passthrough needs the whole device"
            )
        if request.vf:
            return self._virtual_function(device, held, request)
        wanted = request.memory_mib or 0
        if wanted > device.memory_mib:
            return Misfit(
                reason=Reason.TOO_LARGE,
                message=f"{device.model} has {format_mib(device.memory_mib)}, asked {format_mib(wanted)}",
            )
        if held:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"has {len(held)} slices, asked the whole device")
        return Slice(device=device.uuid, memory_mib=device.memory_mib, core_percent=100)

    def _virtual_function(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        profile = vf_profile(device, request.vf)
        if profile is None:
            offered = ", ".join(p.name for p in device.vf_profiles) or "none"
            return Misfit(
                reason=Reason.SELECTOR_MISMATCH, message=f"has no virtual function {request.vf!r}, it has {offered}"
            )
        other = next((h.slice.vf or "whole" for h in held if h.slice.vf != profile.name), None)
        if other is not None:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"is used as {other}, asked {profile.name}")
        if len(held) >= profile.count:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"all {profile.count} of {profile.name} are used")
        return Slice(
            device=device.uuid,
            memory_mib=profile.memory_mib,
            core_percent=max(1, 100 // profile.count),
            vf=profile.name,
        )

    def charge(self, device: Device, part: Slice, policy: ComputePolicy) -> Charge:
        del policy
        if not part.vf:
            return Charge(core_milli=1000)
        profile = vf_profile(device, part.vf)
        return Charge(
            core_milli=part.core_percent * 10,
            memory_mib=part.memory_mib,
            slices_max=profile.count if profile is not None else 0,
        )

    def occupancy(self, device: Device, held: Sequence[HeldSlice]) -> DeviceOccupancy:
        parts = [h.slice for h in held]
        whole = any(not part.vf for part in parts)
        profile = vf_profile(device, parts[0].vf) if parts and not whole else None
        left = profile.count - len(parts) if profile is not None else 0 if parts else 1
        memory_mib = min(device.memory_mib, sum(part.memory_mib for part in parts))
        percent = min(100, sum(part.core_percent for part in parts))
        return DeviceOccupancy(
            device=device.uuid,
            mode=self.name,
            slices=len(parts),
            memory_mib=memory_mib,
            memory_free_mib=0 if not left else device.memory_mib - memory_mib,
            core_percent=percent,
            core_free_percent=0 if not left else 100 - percent,
            slots_free=left,
        )

    def container_edits(self, slices: Sequence[Slice], *, library: str, slot: str) -> Edits:
        """Return edits without the shim library: the program is a virtual machine, and the device has no driver here."""
        del slices, library
        return Edits(environment=(("CALABASH_SLOT", slot), ("NVIDIA_VISIBLE_DEVICES", "void")))


def vf_profile(device: Device, name: str) -> VfProfile | None:
    """Return the virtual function profile of the device by its name, without regard to case; None if there is none."""
    return next((p for p in device.vf_profiles if p.name.lower() == name.lower()), None)


MODE = Passthrough()
