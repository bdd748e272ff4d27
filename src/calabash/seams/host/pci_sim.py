"""A PCI tree on disk that answers writes as a kernel does: for simulated nodes and for tests.

The files are those that ``pci`` reads; ``SimulatedKernel.write`` is what would happen in the kernel. What it does is what a
kernel of Debian was seen to do in ``tests/vfio``, down to the error numbers: a bind without IOMMU is EINVAL, a group that is
not viable binds all the same, taking a device from VFIO blocks while its group is open. All state is in the tree.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calabash.seams.host.pci import VFIO_PCI
from calabash.seams.host.processes import device_users
from calabash.seams.host.sysfs_writer import BlockedError

_LOOK_AGAIN_S = 0.02
_OURS = "driver-of-the-host"  # who drives a device when nothing else is said; sysfs has no such file


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPci:
    """A device to be made. ``group`` -1: the machine has no IOMMU. ``driver`` "": nobody's."""

    address: str
    vendor: int = 0x10DE
    device: int = 0x20B0
    class_code: int = 0x030200
    driver: str = "nvidia"
    group: int = 0
    numa_node: int = -1
    vfs_total: int = 0
    types: Mapping[str, str] | None = None  # mediated: directory -> description


class SimulatedKernel:
    """``KernelWriter`` over a tree below ``root``. Not for two writers at once."""

    def __init__(self, root: Path, *, modules: Sequence[str] = ("vfio_pci", "vfio_iommu_type1")) -> None:
        self.root = root
        self._bus = root / "sys/bus/pci"
        for directory in ("sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/kernel/iommu_groups", "dev/vfio"):
            (root / directory).mkdir(parents=True, exist_ok=True)
        (root / "sys/bus/pci/drivers_probe").touch()
        for module in modules:
            self.load(module)

    def load(self, module: str) -> None:
        """``modprobe``, of a module that there is."""
        (self.root / "sys/module" / module).mkdir(parents=True, exist_ok=True)
        if module == "vfio_pci":
            self._driver(VFIO_PCI)

    def plug(self, device: SimulatedPci) -> None:
        """Let a device appear, driven by its driver. One that is there stays as it is; one of which a simulated node shows
        only what it is gets what it takes to be given away."""
        place = self._place(device.address)
        if (place / _OURS).exists():
            return
        place.mkdir(exist_ok=True)
        words = {
            "vendor": f"{device.vendor:#06x}",
            "device": f"{device.device:#06x}",
            "class": f"{device.class_code:#08x}",
            "numa_node": str(device.numa_node),
            "driver_override": "(null)",
            "modalias": f"pci:v{device.vendor:08X}d{device.device:08X}sv0sd0bc03sc02i00",
            _OURS: device.driver,
        }
        if device.vfs_total:
            words |= {"sriov_totalvfs": str(device.vfs_total), "sriov_numvfs": "0", "sriov_drivers_autoprobe": "1"}
        for name, text in words.items():
            if not (place / name).exists():
                (place / name).write_text(text + "\n")
        for kind, description in (device.types or {}).items():
            directory = place / "mdev_supported_types" / kind
            directory.mkdir(parents=True)
            instances = description.rpartition("max_instance=")[2]
            for name, text in {
                "name": kind,
                "description": description,
                "available_instances": instances,
                "create": "",
            }.items():
                (directory / name).write_text(text + "\n")
        if device.group >= 0:
            members = self.root / "sys/kernel/iommu_groups" / str(device.group) / "devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / device.address).symlink_to(place)
            (place / "iommu_group").symlink_to(members.parent)
        if device.driver:
            self._attach(device.address, device.driver)

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        """As a write to that file would end."""
        if not path.exists():
            raise _error(errno.ENOENT, path)
        place, word = path.parent, text.strip()
        if path.name == "unbind":
            self._unbind(path, word, timeout_s)
        elif path.name == "bind":
            self._bind(path, place.name, word)
        elif path.name == "drivers_probe":
            self._probe(path, word)
        elif path.name == "sriov_numvfs":
            self._numvfs(path, place, int(word), timeout_s)
        elif path.name == "create":
            self._create(path, place, word)
        elif path.name == "remove":
            self._remove(path, place, timeout_s)
        else:
            path.write_text((word or "(null)") + "\n")

    def _unbind(self, path: Path, address: str, timeout_s: float) -> None:
        place = self._place(address)
        driver = _name(place / "driver")
        if driver != _name(path.parent) and driver != path.parent.resolve().name:
            raise _error(errno.ENODEV, path)
        if driver == VFIO_PCI:
            node = self.root / "dev/vfio" / _name(place / "iommu_group")
            self._wait(path, node, timeout_s)
        self._detach(address, driver)  # a kernel hides the driver at once and goes on by itself; this one gives up

    def _wait(self, path: Path, node: Path, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while device_users([node])[node]:
            if time.monotonic() > until:
                raise BlockedError(path, timeout_s)
            time.sleep(_LOOK_AGAIN_S)

    def _bind(self, path: Path, driver: str, address: str) -> None:
        place = self._place(address)
        if not place.exists():
            raise _error(errno.ENODEV, path)
        if (place / "driver").is_symlink():
            raise _error(errno.EBUSY, path)
        if driver not in self._wanted(place):
            raise _error(errno.ENODEV, path)
        if driver == VFIO_PCI and (
            not (place / "iommu_group").is_symlink() or (place / "class").read_text().startswith("0x06")
        ):
            raise _error(errno.EINVAL, path)
        self._attach(address, driver)

    def _probe(self, path: Path, address: str) -> None:
        place = self._place(address)
        if not place.exists():
            raise _error(errno.ENODEV, path)
        if (place / "driver").is_symlink():
            return
        card = place / "physfn"
        quiet = card.is_symlink() and (card / "sriov_drivers_autoprobe").read_text().strip() == "0"
        driver = next((d for d in self._wanted(place) if (self._bus / "drivers" / d).exists()), "")
        if driver and (not quiet or driver == VFIO_PCI):
            self._attach(address, driver)

    def _numvfs(self, path: Path, place: Path, count: int, timeout_s: float) -> None:
        present = int(path.read_text())
        if count > int((place / "sriov_totalvfs").read_text()) or count < 0:
            raise _error(errno.ERANGE, path)
        if count and present:
            raise _error(errno.EBUSY, path)
        for number in range(present if not count else 0):
            address = _name(place / f"virtfn{number}")
            function = self._place(address)
            self._wait(path, self.root / "dev/vfio" / _name(function / "iommu_group"), timeout_s)
            self._detach(address, _name(function / "driver"))
            shutil.rmtree(self.root / "sys/kernel/iommu_groups" / _name(function / "iommu_group"))
            (place / f"virtfn{number}").unlink()
            shutil.rmtree(function)
        path.write_text(f"{count}\n")
        groups = self.root / "sys/kernel/iommu_groups"
        quiet = (place / "sriov_drivers_autoprobe").read_text().strip() == "0"
        for number in range(count):
            slot_of, _, ordinal_of = place.name.rpartition(".")
            bus, _, slot = slot_of.rpartition(":")
            ordinal = int(slot, 16) * 8 + int(ordinal_of) + number + 1
            address = f"{bus}:{ordinal // 8:02x}.{ordinal % 8}"
            free = next(group for group in range(10_000) if not (groups / str(group)).exists())
            driver = (place / _OURS).read_text().strip()
            self.plug(SimulatedPci(address=address, driver="" if quiet else driver, group=free))
            (self._place(address) / _OURS).write_text(driver + "\n")
            (self._place(address) / "physfn").symlink_to(place)
            (place / f"virtfn{number}").symlink_to(self._place(address))

    def _create(self, path: Path, kind: Path, uuid: str) -> None:
        left = int((kind / "available_instances").read_text())
        there = self.root / "sys/bus/mdev/devices" / uuid
        if there.exists():
            raise _error(errno.EEXIST, path)
        if left < 1:
            raise _error(errno.ENOSPC, path)
        (kind / "available_instances").write_text(f"{left - 1}\n")
        groups = self.root / "sys/kernel/iommu_groups"
        free = next(group for group in range(10_000) if not (groups / str(group)).exists())
        (groups / str(free) / "devices").mkdir(parents=True)
        (self.root / "dev/vfio" / str(free)).touch()
        there.mkdir(parents=True)
        (there / "mdev_type").symlink_to(kind)
        (there / "iommu_group").symlink_to(groups / str(free))
        (there / "remove").touch()

    def _remove(self, path: Path, there: Path, timeout_s: float) -> None:
        node = self.root / "dev/vfio" / _name(there / "iommu_group")
        self._wait(path, node, timeout_s)
        instances = there / "mdev_type" / "available_instances"
        instances.write_text(f"{int(instances.read_text()) + 1}\n")
        shutil.rmtree((there / "iommu_group").resolve())
        node.unlink(missing_ok=True)
        shutil.rmtree(there)

    def _wanted(self, place: Path) -> tuple[str, ...]:
        override = (place / "driver_override").read_text().strip()
        return (override,) if override != "(null)" else ((place / _OURS).read_text().strip(),)

    def _attach(self, address: str, driver: str) -> None:
        place = self._place(address)
        self._driver(driver)
        for link, target in (
            (self._bus / "drivers" / driver / address, place),
            (place / "driver", self._bus / "drivers" / driver),
        ):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        if driver == VFIO_PCI:
            (self.root / "dev/vfio" / _name(place / "iommu_group")).touch()

    def _detach(self, address: str, driver: str) -> None:
        place = self._place(address)
        (place / "driver").unlink(missing_ok=True)
        if driver:
            (self._bus / "drivers" / driver / address).unlink(missing_ok=True)
        members = (place / "iommu_group").resolve() / "devices"
        if driver == VFIO_PCI and not any(_name(member / "driver") == VFIO_PCI for member in members.iterdir()):
            (self.root / "dev/vfio" / _name(place / "iommu_group")).unlink(missing_ok=True)

    def _driver(self, driver: str) -> None:
        directory = self._bus / "drivers" / driver
        directory.mkdir(exist_ok=True)
        for name in ("bind", "unbind"):
            (directory / name).touch()

    def _place(self, address: str) -> Path:
        return self._bus / "devices" / address


def _name(link: Path) -> str:
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return ""


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
