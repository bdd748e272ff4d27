"""Parts of a card for virtual machines: SR-IOV functions, virtual GPUs by the driver's list, mediated devices.

A card's functions are made all at once and only from none; they get no host driver of their own. A virtual GPU is made by
writing its type where the driver wants it, and unmade by its reverse, which the kernel lets wait while it is used.
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
    """Makes and unmakes them; every call may be repeated."""

    def __init__(self, tree: PciTree, writer: KernelWriter, *, timeout_s: float = WRITE_S) -> None:
        self._tree = tree
        self._writer = writer
        self._timeout_s = timeout_s

    def make(self, address: str, count: int) -> tuple[str, ...]:
        """Let the card have that many functions; their addresses. Raises CalabashError."""
        device = self._tree.get(address)
        if len(device.vfs) == count:
            return device.vfs
        place = self._tree.place(address)
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
        """Take them all away. Raises TIMEOUT while one is used."""
        device = self._tree.find(address)
        if device is not None and device.vfs:
            self._write(
                self._tree.place(address) / "sriov_numvfs",
                "0",
                f"{address} keeps its {len(device.vfs)} virtual functions",
            )

    def set_type(self, function: str, kind: str) -> None:
        """Make a function a virtual GPU of that type of the driver's list; "" unmakes it."""
        place = self._tree.place(function) / "nvidia" / "current_vgpu_type"
        what = f"{function} does not become a virtual GPU of type {kind}" if kind else f"{function} stays a virtual GPU"
        meanings = {
            errno.EINVAL: "the driver does not know the type, or the card is divided otherwise; see creatable_vgpu_types",
            errno.EBUSY: "a virtual machine uses it; shut it down first",
            errno.ENOENT: "its driver has no such list; install the vGPU host driver",
        }
        self._write(place, kind or "0", what, meanings)

    def make_mediated(self, parent: str, kind: str, uuid: str) -> None:
        """Make a mediated device of that type with that name."""
        if _UUID.fullmatch(uuid) is None or _TYPE.fullmatch(kind) is None:
            raise CalabashError(f"{uuid[:40]!r} of type {kind[:40]!r} is no mediated device")
        if self.mediated(uuid):
            return
        meanings = {
            errno.ENOSPC: "no more of this type fit on it; choose another type, or give one back",
            errno.ENOENT: "it does not offer this type; see mdev_supported_types",
            errno.EEXIST: "one of that name exists already; see /sys/bus/mdev/devices",
        }
        place = self._tree.place(parent) / "mdev_supported_types" / kind / "create"
        self._write(place, uuid, f"{parent} makes no {kind}", meanings)

    def unmake_mediated(self, uuid: str) -> None:
        """Take it away. Raises TIMEOUT while a virtual machine uses it."""
        if self.mediated(uuid):
            self._write(self._mediated(uuid) / "remove", "1", f"the mediated device {uuid} stays")

    def mediated(self, uuid: str) -> bool:
        """Whether there is one of that name."""
        return _UUID.fullmatch(uuid) is not None and self._mediated(uuid).exists()

    def mediated_group(self, uuid: str) -> int:
        """The IOMMU group of a mediated device; -1 when there is none of that name."""
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
                f"{what}: the kernel still waited after {self._timeout_s:g} s for whoever uses one of them",
                reason=Reason.TIMEOUT,
                hint="shut the virtual machine down; it goes on by itself then",
            ) from error
        except OSError as error:
            raise refused(error, what, meanings, otherwise=Reason.CONFLICT) from error
