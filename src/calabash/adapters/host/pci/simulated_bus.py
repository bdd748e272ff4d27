"""Simulated PCI bus on disk: devices, drivers and IOMMU groups, and the kernel's reaction to binding and unbinding.

It behaves like the kernel of Debian that ``tests/vfio`` observes, including error numbers. Binding a device to VFIO
without an IOMMU fails with EINVAL. A device is bound even if its group is not viable, because another device of the
group has a host driver. Unbinding a device from VFIO blocks while the group's file is open.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.host.pci.devices import VFIO_PCI
from calabash.adapters.host.processes import device_users
from calabash.adapters.host.sysfs_writer import BlockedError

OURS = "driver-of-the-host"  # file with the device's usual driver; sysfs has no such file
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPci:
    """Device to be created on a simulated bus; fields as in ``PciDevice``.

    ``group`` is -1 if the machine has no IOMMU, ``driver`` is "" for a device without driver.
    """

    address: str
    vendor: int = 0x10DE
    device: int = 0x20B0
    class_code: int = 0x030200
    driver: str = "nvidia"
    group: int = 0
    numa_node: int = -1
    vfs_total: int = 0
    types: Mapping[str, str] | None = None  # mediated: directory -> description


class SimulatedBus:
    """PCI bus below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._bus = root / "sys/bus/pci"
        for directory in ("sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/kernel/iommu_groups", "dev/vfio"):
            (root / directory).mkdir(parents=True, exist_ok=True)
        (root / "sys/bus/pci/drivers_probe").touch()

    def directory(self, address: str) -> Path:
        """Return the directory of a device."""
        return self._bus / "devices" / address

    def load(self, module: str) -> None:
        """Load a kernel module, as ``modprobe`` does."""
        (self.root / "sys/module" / module).mkdir(parents=True, exist_ok=True)
        if module == "vfio_pci":
            self._driver(VFIO_PCI)
            (self.root / "dev/vfio/vfio").touch()

    def plug(self, device: SimulatedPci) -> None:
        """Add a device with its driver bound.

        An existing device is kept. A simulated node makes only some files of a device; the missing files, which
        passthrough needs, are added.
        """
        place = self.directory(device.address)
        if (place / OURS).exists():
            return
        place.mkdir(exist_ok=True)
        words = {
            "vendor": f"{device.vendor:#06x}",
            "device": f"{device.device:#06x}",
            "class": f"{device.class_code:#08x}",
            "numa_node": str(device.numa_node),
            "driver_override": "(null)",
            "modalias": f"pci:v{device.vendor:08X}d{device.device:08X}sv0sd0bc03sc02i00",
            OURS: device.driver,
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

    def unbind(self, path: Path, address: str, timeout_s: float) -> None:
        """Apply a write to ``path``, the file ``unbind`` of a driver: unbind the device from this driver."""
        place = self.directory(address)
        driver = link_name(place / "driver")
        if driver != link_name(path.parent) and driver != path.parent.resolve().name:
            raise refusal(errno.ENODEV, path)
        if driver == VFIO_PCI:
            node = self.root / "dev/vfio" / link_name(place / "iommu_group")
            self.wait(path, node, timeout_s)
        self.detach(address, driver)  # a kernel hides the driver at once and completes later; the simulation gives up

    def wait(self, path: Path, node: Path, timeout_s: float) -> None:
        """Wait until no process has a device file open. Raises BlockedError after ``timeout_s``.

        Args:
            path: file whose write waits, for the message of the error.
            node: the device file.
        """
        until = time.monotonic() + timeout_s
        while device_users([node])[node]:
            if time.monotonic() > until:
                raise BlockedError(path, timeout_s)
            time.sleep(_POLL_S)

    def bind(self, path: Path, driver: str, address: str) -> None:
        """Bind a device to a driver that accepts it. Raises OSError."""
        place = self.directory(address)
        if not place.exists():
            raise refusal(errno.ENODEV, path)
        if (place / "driver").is_symlink():
            raise refusal(errno.EBUSY, path)
        if driver not in self._wanted(place):
            raise refusal(errno.ENODEV, path)
        if driver == VFIO_PCI and (
            not (place / "iommu_group").is_symlink() or (place / "class").read_text().startswith("0x06")
        ):
            raise refusal(errno.EINVAL, path)
        self._attach(address, driver)

    def probe(self, path: Path, address: str) -> None:
        """Apply a write to ``drivers_probe``: bind the device to the driver that accepts it, if any."""
        place = self.directory(address)
        if not place.exists():
            raise refusal(errno.ENODEV, path)
        if (place / "driver").is_symlink():
            return
        card = place / "physfn"
        quiet = card.is_symlink() and (card / "sriov_drivers_autoprobe").read_text().strip() == "0"
        driver = next((d for d in self._wanted(place) if (self._bus / "drivers" / d).exists()), "")
        if driver and (not quiet or driver == VFIO_PCI):
            self._attach(address, driver)

    def _wanted(self, place: Path) -> tuple[str, ...]:
        override = (place / "driver_override").read_text().strip()
        return (override,) if override != "(null)" else ((place / OURS).read_text().strip(),)

    def _attach(self, address: str, driver: str) -> None:
        place = self.directory(address)
        self._driver(driver)
        for link, target in (
            (self._bus / "drivers" / driver / address, place),
            (place / "driver", self._bus / "drivers" / driver),
        ):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        if driver == VFIO_PCI:
            (self.root / "dev/vfio" / link_name(place / "iommu_group")).touch()

    def detach(self, address: str, driver: str) -> None:
        """Remove the device from its driver."""
        place = self.directory(address)
        (place / "driver").unlink(missing_ok=True)
        if driver:
            (self._bus / "drivers" / driver / address).unlink(missing_ok=True)
        members = (place / "iommu_group").resolve() / "devices"
        if driver == VFIO_PCI and not any(link_name(member / "driver") == VFIO_PCI for member in members.iterdir()):
            (self.root / "dev/vfio" / link_name(place / "iommu_group")).unlink(missing_ok=True)

    def _driver(self, driver: str) -> None:
        directory = self._bus / "drivers" / driver
        directory.mkdir(exist_ok=True)
        for name in ("bind", "unbind"):
            (directory / name).touch()


def link_name(link: Path) -> str:
    """Return the last component of a link's target; "" if there is no link."""
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return ""


def refusal(number: int, path: Path) -> OSError:
    """Return the error of a write that the kernel refuses."""
    return OSError(number, os.strerror(number), str(path))
