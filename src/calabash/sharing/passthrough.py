"""Passthrough: a virtual machine has the whole card, or a virtual function of it, and this host has nothing to do with it.

The hardware keeps tenants apart: the IOMMU confines what a device reaches. It confines groups of devices, not devices, so
a card can be handed out only with everything of its group; what that means is decided here, by the kernel's own rule.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from calabash.model.device import Device, VfProfile
from calabash.model.errors import Reason
from calabash.model.request import VF_MODE, ComputePolicy, GpuRequest, Isolation, Slice
from calabash.model.units import format_mib
from calabash.sharing.protocol import Charge, DeviceDivision, Edits, HeldSlice, Misfit

RESOURCE = "calabash.dev/gpus"  # what a virtual machine of KubeVirt names as its device
_GUARDED = frozenset({"pcieport", "pci-stub"})  # host drivers that let others own the group


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A device of an IOMMU group: its address, its driver ("" none), whether it is a bridge, whether VFIO has it."""

    address: str
    driver: str
    bridge: bool = False
    vfio: bool = False


def companions(members: Sequence[GroupMember], address: str) -> tuple[str, ...]:
    """The other functions of the same card in its group, such as its sound: they go where the card goes."""
    card = address.rpartition(".")[0]
    return tuple(
        m.address for m in members if m.address != address and not m.bridge and m.address.rpartition(".")[0] == card
    )


def not_viable(members: Sequence[GroupMember], ours: Collection[str]) -> str:
    """Why a virtual machine could not use devices of this group, "" when it could.

    Every member must be one of ``ours``, a bridge, without a driver, or with one that touches nothing. One that VFIO has
    and that is not ours belongs to another virtual machine, and a group is one machine's at a time.
    """
    others = [m for m in members if m.address not in ours and not m.bridge]
    taken = [m.address for m in others if m.vfio]
    if taken:
        return f"{', '.join(taken)} of the same IOMMU group is given out already"
    busy = [f"{m.address} ({m.driver})" for m in others if m.driver and m.driver not in _GUARDED]
    return f"{', '.join(busy)} of the same IOMMU group is the host's" if busy else ""


def kubevirt_variable(resource: str, *, mediated: bool = False) -> str:
    """The variable in which KubeVirt looks for the devices of a resource."""
    name = resource.upper().replace("/", "_").replace(".", "_")
    return f"{'MDEV_' if mediated else ''}PCI_RESOURCE_{name}"


def vendor_resource(model: str) -> str:
    """The name under which NVIDIA's own plug-in for KubeVirt would offer such a card."""
    words = "".join("_" if c in " /." else c for c in model.upper())
    return "nvidia.com/" + "".join(c for c in words if c.isalnum() or c in "_-")


class Passthrough:
    """Whole cards, or parts of one size of a card."""

    name = VF_MODE
    isolation = Isolation.HARDWARE

    def rank(self, request: GpuRequest) -> int | None:
        del request
        return None  # only when asked for by name, or by a virtual function, which says the name

    def fits(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        if any(instance.fixed or instance.foreign for instance in device.mig_instances):
            return Misfit(reason=Reason.MODE_CONFLICT, message="is cut by MIG, and goes to a virtual machine whole")
        if request.vf:
            return self._part(device, held, request)
        wanted = request.memory_mib or 0
        if wanted > device.memory_mib:
            return Misfit(
                reason=Reason.TOO_LARGE,
                message=f"{device.model} has {format_mib(device.memory_mib)}, asked {format_mib(wanted)}",
            )
        if held:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"held by {len(held)} other, asked whole")
        return Slice(device=device.uuid, memory_mib=device.memory_mib, core_percent=100)

    def _part(self, device: Device, held: Sequence[HeldSlice], request: GpuRequest) -> Slice | Misfit:
        profile = profile_named(device, request.vf)
        if profile is None:
            offered = ", ".join(p.name for p in device.vf_profiles) or "none"
            return Misfit(
                reason=Reason.SELECTOR_MISMATCH, message=f"offers no virtual function {request.vf!r}, but {offered}"
            )
        other = next((h.slice.vf or "whole" for h in held if h.slice.vf != profile.name), None)
        if other is not None:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"is given out as {other}, asked {profile.name}")
        if len(held) >= profile.count:
            return Misfit(reason=Reason.NO_CAPACITY, message=f"all {profile.count} of {profile.name} are given out")
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
        profile = profile_named(device, part.vf)
        return Charge(
            core_milli=part.core_percent * 10,
            memory_mib=part.memory_mib,
            slices_max=profile.count if profile is not None else 0,
        )

    def division(self, device: Device, held: Sequence[HeldSlice]) -> DeviceDivision:
        parts = [h.slice for h in held]
        whole = any(not part.vf for part in parts)
        profile = profile_named(device, parts[0].vf) if parts and not whole else None
        left = profile.count - len(parts) if profile is not None else 0 if parts else 1
        memory_mib = min(device.memory_mib, sum(part.memory_mib for part in parts))
        percent = min(100, sum(part.core_percent for part in parts))
        return DeviceDivision(
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
        """No library of ours: the program is a virtual machine, and its card has no driver here."""
        del slices, library
        return Edits(environment=(("CALABASH_SLOT", slot), ("NVIDIA_VISIBLE_DEVICES", "void")))


def profile_named(device: Device, name: str) -> VfProfile | None:
    """That profile of the device, without regard to case."""
    return next((p for p in device.vf_profiles if p.name.lower() == name.lower()), None)


MODE = Passthrough()
