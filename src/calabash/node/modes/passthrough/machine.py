"""PCI devices of the machine for passthrough: lookup, checks before an attachment, and virtual GPU profiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from calabash.adapters.host.pci.device_nodes import node_of
from calabash.adapters.host.pci.devices import PciDevice, PciTree, pci_address
from calabash.adapters.host.pci.simulated import SimulatedKernel
from calabash.adapters.host.pci.simulated_bus import SimulatedPci
from calabash.adapters.host.pci.vfio import Vfio, is_vfio
from calabash.adapters.host.pci.virtual_functions import VirtualFunctions
from calabash.adapters.host.processes import Process, command_name, device_users
from calabash.adapters.host.sysfs_writer import HelperWriter, KernelWriter
from calabash.model.device import Device, VfProfile
from calabash.model.errors import CalabashError, Reason
from calabash.sharing.passthrough import GroupMember, card_functions, iommu_group_obstacle

PLAIN = "vf"  # profile of a virtual function without vGPU types: an even part of the device
_SIMULATED_FUNCTIONS = 16
_USERS_TOLD = 3
NOTHING: Mapping[str, int] = {}


def is_gpu(device: PciDevice) -> bool:
    """Return True for display controllers and processing accelerators."""
    return device.class_code >> 16 in {0x03, 0x12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine below ``root``, or the simulated machine of a simulated node.

    Args:
        root: root of the file system.
        writer: writes to sysfs.
        vfio: binds devices to VFIO.
        functions: creates virtual functions and mediated devices.
        accepts: returns True for PCI devices that are GPUs.
        apart: context in which this process has no file of a device's driver open.
    """

    root: Path
    writer: KernelWriter
    vfio: Vfio
    functions: VirtualFunctions
    accepts: Callable[[PciDevice], bool] = is_gpu
    apart: Callable[[Device], AbstractContextManager[None]] = lambda _: nullcontext()

    @property
    def tree(self) -> PciTree:
        return self.vfio.tree

    # -- before ------------------------------------------------------------------------------------------------

    def card(self, device: Device) -> PciDevice:
        """Return the PCI device of a GPU. Raises UNHEALTHY if it has no PCI address or is no GPU."""
        address = pci_address(device.pci_bus_id)
        if not address:
            raise CalabashError(
                f"device {device.index} has no PCI address, which passthrough needs", reason=Reason.UNHEALTHY
            )
        found = self.tree.get(address)
        if not self.accepts(found):
            raise CalabashError(
                f"device {device.index} at {address} has PCI class {found.class_code:06x} and is no GPU",
                reason=Reason.UNHEALTHY,
            )
        return found

    def require_group(self, address: str, ours: Collection[str]) -> tuple[str, ...]:
        """Check that the IOMMU group of a device is viable, that is, all its devices are attached together or unused.

        Args:
            address: PCI address of the device.
            ours: addresses of other devices that are attached together with it.

        Returns:
            The addresses of the device's other functions, which must be attached with it.

        Raises:
            CalabashError: CONFLICT: another device of the group is bound to a host driver.
        """
        device = self.vfio.require_ready(address)
        members = [
            GroupMember(address=m.address, driver=m.driver, bridge=m.is_bridge, vfio=is_vfio(m.driver))
            for m in self.tree.members(device.group)
        ]
        beside = card_functions(members, address) if not device.physical else ()
        why = iommu_group_obstacle(members, {address, *beside, *ours})
        if why:
            raise CalabashError(
                f"IOMMU group {device.group} of {address} is not viable: {why}",
                reason=Reason.CONFLICT,
                hint="attach all devices of the group together, or use a slot that the chipset isolates (ACS)",
            )
        return beside

    def require_unused(self, device: Device, card: PciDevice, addresses: Sequence[str]) -> None:
        """Check that no other process has the device open, because the kernel would unbind an open device too.

        Raises CONFLICT.
        """
        nodes = [node for address in addresses for node in self.tree.nodes(address)]
        own = node_of(self.root, device.pci_bus_id)
        users = self.users([*nodes, *([own] if own is not None else ())])
        if users:
            hint = "end them, or wait"
            if "persistenced" in users:
                hint = f"nvidia-smi -i {card.address} -pm 0, or stop nvidia-persistenced"
            raise CalabashError(f"device {device.index} is open: {users}", reason=Reason.CONFLICT, hint=hint)

    def require_whole(self, device: Device, card: PciDevice) -> None:
        """Check that MIG is disabled and the device has no virtual functions. Raises MODE_CONFLICT."""
        if device.mig_enabled:
            raise CalabashError(
                f"device {device.index} has MIG enabled, which must be disabled for a virtual machine",
                reason=Reason.MODE_CONFLICT,
                hint=f"calabash device mode {device.index} auto",
            )
        if card.vfs:
            raise CalabashError(
                f"device {device.index} has {len(card.vfs)} virtual functions",
                reason=Reason.MODE_CONFLICT,
                hint=f"echo 0 > {self.tree.directory(card.address)}/sriov_numvfs",
            )

    def users(self, nodes: Sequence[Path]) -> str:
        """Return the other processes that have one of these files open, at most three, as text; "" if there are none."""
        found = {p for users in device_users(nodes).values() for p in users if p.pid != os.getpid()}
        words = [f"pid {p.pid} ({command_name(p) or '?'})" for p in sorted(found, key=_pid)]
        return ", ".join(words[:_USERS_TOLD]) + (", ..." if len(words) > _USERS_TOLD else "")

    # -- parts -------------------------------------------------------------------------------------------------

    def profiles(
        self, device: Device, given: Mapping[str, int] = NOTHING, *, at: Collection[str] = ()
    ) -> tuple[VfProfile, ...]:
        """Return the virtual GPU profiles of a device, largest first.

        Args:
            device: the device.
            given: number of attached virtual GPUs by profile.
            at: addresses of the virtual functions that are attached.
        """
        card = self.tree.find(pci_address(device.pci_bus_id)) if pci_address(device.pci_bus_id) else None
        if card is None or not self.accepts(card):
            return ()
        found = {p.name: replace(p, count=0) for p in device.vf_profiles if given.get(p.name)}
        for place in (p for p in (card.address, *card.vfs) if p not in at):
            for kind in self.tree.virtual_types(place):
                count = kind.available + (found[kind.name].count if kind.name in found else 0)
                found[kind.name] = VfProfile(name=kind.name, memory_mib=kind.memory_mib, count=count)
        found = {name: replace(one, count=one.count + given.get(name, 0)) for name, one in found.items()}
        found = {name: one for name, one in found.items() if one.count}
        found.pop(PLAIN, None)
        if not found and card.vfs_total:
            memory_mib = device.memory_mib // card.vfs_total
            found[PLAIN] = VfProfile(name=PLAIN, memory_mib=memory_mib, count=card.vfs_total)
        return tuple(sorted(found.values(), key=lambda profile: (-profile.memory_mib, profile.name)))


def _pid(process: Process) -> int:
    return process.pid


def real_machine(root: Path, apart: Callable[[Device], AbstractContextManager[None]]) -> Machine:
    """Return this machine, with the file system below ``root``; ``apart`` as in ``Machine``."""
    writer, tree = HelperWriter(), PciTree(root)

    def holders(node: Path) -> str:
        return machine.users([node])

    machine = Machine(
        root=root,
        writer=writer,
        vfio=Vfio(tree, writer, holders=holders),
        functions=VirtualFunctions(tree, writer),
        apart=apart,
    )
    return machine


def simulated_machine(root: Path, devices: Sequence[Device]) -> Machine:
    """Return a machine with the devices of a simulated node, each in a separate IOMMU group and with SR-IOV."""
    kernel, tree = SimulatedKernel(root), PciTree(root)
    for number, device in enumerate(devices):
        address = pci_address(device.pci_bus_id)
        if address:
            kernel.plug(
                SimulatedPci(
                    address=address, group=number + 1, numa_node=device.numa_node, vfs_total=_SIMULATED_FUNCTIONS
                )
            )
    vfio = Vfio(tree, kernel, load=kernel.load, timeout_s=1.0)
    return Machine(root=root, writer=kernel, vfio=vfio, functions=VirtualFunctions(tree, kernel, timeout_s=1.0))
