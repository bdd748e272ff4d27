"""The machine as passthrough sees it: its PCI tree, whoever writes to it, and the checks before anything is changed."""

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

PLAIN = "vf"  # the profile of a function that has no types: an even part of the card
_SIMULATED_FUNCTIONS = 16
_USERS_TOLD = 3
NOTHING: Mapping[str, int] = {}


def is_gpu(device: PciDevice) -> bool:
    """Display controllers and accelerators."""
    return device.class_code >> 16 in {0x03, 0x12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A real machine below ``root``, or what stands in for one beside a simulated node.

    Args:
        accepts: which devices are cards.
        apart: a context in which this process has nothing of a card's driver open.
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
        """The PCI device that a card is. Raises CalabashError."""
        address = pci_address(device.pci_bus_id)
        if not address:
            raise CalabashError(
                f"device {device.index} has no PCI address by which it could be given away", reason=Reason.UNHEALTHY
            )
        found = self.tree.get(address)
        if not self.accepts(found):
            raise CalabashError(
                f"device {device.index} is {address}, of class {found.class_code:06x}, and no graphics card",
                reason=Reason.UNHEALTHY,
            )
        return found

    def require_group(self, address: str, ours: Collection[str]) -> tuple[str, ...]:
        """Its companions, if its group is viable with them. Raises CalabashError."""
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
                hint="give the whole group away together, or plug the card where the chipset separates it (ACS)",
            )
        return beside

    def require_unused(self, device: Device, card: PciDevice, addresses: Sequence[str]) -> None:
        """Nobody has the card open: the kernel would take it away all the same. Raises CalabashError."""
        nodes = [node for address in addresses for node in self.tree.nodes(address)]
        own = node_of(self.root, device.pci_bus_id)
        users = self.users([*nodes, *([own] if own is not None else ())])
        if users:
            hint = "end them, or wait"
            if "persistenced" in users:
                hint = f"nvidia-smi -i {card.address} -pm 0, or stop nvidia-persistenced"
            raise CalabashError(f"device {device.index} is open: {users}", reason=Reason.CONFLICT, hint=hint)

    def require_whole(self, device: Device, card: PciDevice) -> None:
        """It is neither divided nor partly given. Raises CalabashError."""
        if device.mig_enabled:
            raise CalabashError(
                f"device {device.index} has MIG on, and a virtual machine takes it without",
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
        """Who has one of these files open, in words; "" nobody. This process does not count."""
        found = {p for users in device_users(nodes).values() for p in users if p.pid != os.getpid()}
        words = [f"pid {p.pid} ({command_name(p) or '?'})" for p in sorted(found, key=_pid)]
        return ", ".join(words[:_USERS_TOLD]) + (", ..." if len(words) > _USERS_TOLD else "")

    # -- parts -------------------------------------------------------------------------------------------------

    def profiles(
        self, device: Device, given: Mapping[str, int] = NOTHING, *, at: Collection[str] = ()
    ) -> tuple[VfProfile, ...]:
        """The parts that this card makes for virtual machines, largest first; ``given``: how many of each are out, and
        ``at`` which functions."""
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
    """The machine below ``root``."""
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
    """Cards of a simulated node in a tree below its root, each in an IOMMU group of its own, with SR-IOV."""
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
