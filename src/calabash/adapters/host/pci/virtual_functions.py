"""Virtual devices of a card for virtual machines: SR-IOV functions, virtual GPUs, and mediated devices.

The virtual functions of a card are created in one step, and only while the card has none. They are not bound to drivers
of the host. A virtual GPU is created by writing its type into the driver's file and removed by writing 0, which the
kernel delays while it is in use.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from calabash.adapters.host.pci.devices import PciTree
from calabash.adapters.host.pci.vfio import WRITE_S
from calabash.adapters.host.sysfs_writer import BlockedError, KernelWriter, refused
from calabash.model.errors import CalabashError, Reason

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class VirtualFunctions:
    """Creates and removes virtual functions and mediated devices of cards in ``tree``; calls may be repeated."""

    def __init__(self, tree: PciTree, writer: KernelWriter, *, timeout_s: float = WRITE_S) -> None:
        self._tree = tree
        self._writer = writer
        self._timeout_s = timeout_s

    def make(self, address: str, count: int) -> tuple[str, ...]:
        """Give the card exactly ``count`` virtual functions; return their addresses. Raises CalabashError."""
        device = self._tree.get(address)
        if len(device.vfs) == count:
            return device.vfs
        place = self._tree.directory(address)
        if (place / "sriov_drivers_autoprobe").exists():
            self._write(
                place / "sriov_drivers_autoprobe", "0", f"{address} cannot keep its functions from host drivers"
            )
        self._write(
            place / "sriov_numvfs",
            str(count),
            f"{address} does not get {count} virtual functions",
            {
                errno.ERANGE: f"it can have {device.vfs_total}; ask for fewer",
                errno.EBUSY: f"it has {len(device.vfs)} and the number changes from none only; give them all back first",
                errno.ENOENT: "it has no SR-IOV, or its driver does not offer it; see `lspci -v`",
            },
        )
        found = self._tree.get(address).vfs
        if len(found) != count:
            raise CalabashError(f"{address} was to have {count} virtual functions and has {len(found)}")
        return found

    def unmake(self, address: str) -> None:
        """Remove all virtual functions of the card. Raises CalabashError(TIMEOUT) while one is in use."""
        device = self._tree.find(address)
        if device is not None and device.vfs:
            self._write(
                self._tree.directory(address) / "sriov_numvfs",
                "0",
                f"{address} keeps its {len(device.vfs)} virtual functions",
            )

    def set_type(self, function: str, kind: str) -> None:
        """Create a virtual GPU on a virtual function, or remove it. Raises CalabashError.

        Args:
            function: PCI address of the virtual function.
            kind: number of a type in the driver's list of creatable types; "" to remove the virtual GPU.
        """
        place = self._tree.directory(function) / "nvidia" / "current_vgpu_type"
        what = f"{function} does not become a virtual GPU of type {kind}" if kind else f"{function} stays a virtual GPU"
        meanings = {
            errno.EINVAL: "the driver does not know the type, or the card is divided otherwise; see creatable_vgpu_types",
            errno.EBUSY: "a virtual machine uses it; shut it down first",
            errno.ENOENT: "its driver has no such list; install the vGPU host driver",
        }
        self._write(place, kind or "0", what, meanings)

    def make_mediated(self, parent: str, kind: str, uuid: str) -> None:
        """Create a mediated device; does nothing if one with this UUID exists. Raises CalabashError.

        Args:
            parent: PCI address of the card or function that provides the device.
            kind: type of the device, a directory name in the parent's ``mdev_supported_types``.
            uuid: UUID of the new device.
        """
        if _UUID.fullmatch(uuid) is None or _TYPE.fullmatch(kind) is None:
            raise CalabashError(f"{uuid[:40]!r} of type {kind[:40]!r} is not a valid mediated device")
        if self.mediated(uuid):
            return
        meanings = {
            errno.ENOSPC: "no more of this type fit on it; choose another type, or give one back",
            errno.ENOENT: "it does not offer this type; see mdev_supported_types",
            errno.EEXIST: "one of that name exists already; see /sys/bus/mdev/devices",
        }
        place = self._tree.directory(parent) / "mdev_supported_types" / kind / "create"
        self._write(place, uuid, f"{parent} makes no {kind}", meanings)

    def unmake_mediated(self, uuid: str) -> None:
        """Remove a mediated device. Raises CalabashError(TIMEOUT) while a virtual machine uses it."""
        if self.mediated(uuid):
            self._write(self._mediated(uuid) / "remove", "1", f"the mediated device {uuid} stays")

    def mediated(self, uuid: str) -> bool:
        """Return True if a mediated device with this UUID exists."""
        return _UUID.fullmatch(uuid) is not None and self._mediated(uuid).exists()

    def mediated_group(self, uuid: str) -> int:
        """Return the IOMMU group of a mediated device; -1 if it does not exist."""
        try:
            group = os.path.basename(os.readlink(self._mediated(uuid) / "iommu_group"))
        except OSError:
            return -1
        return int(group) if group.isdigit() and self.mediated(uuid) else -1

    def _mediated(self, uuid: str) -> Path:
        return self._tree.root / "sys/bus/mdev/devices" / uuid

    def _write(self, path: Path, text: str, what: str, meanings: Mapping[int, str] | None = None) -> None:
        try:
            self._writer.write(path, text, timeout_s=self._timeout_s)
        except BlockedError as error:
            raise CalabashError(
                f"{what}: after {self._timeout_s:g} s the kernel still waits for the program that uses one of them",
                reason=Reason.TIMEOUT,
                hint="shut the virtual machine down; it then completes by itself",
            ) from error
        except OSError as error:
            raise refused(error, what, meanings, otherwise=Reason.CONFLICT) from error
