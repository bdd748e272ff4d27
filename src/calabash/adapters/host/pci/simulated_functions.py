"""SR-IOV functions and mediated devices of simulated cards, created and removed as a kernel does."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from calabash.adapters.host.pci.simulated_bus import OURS, SimulatedBus, SimulatedPci, link_name, refusal


class SimulatedFunctions:
    """Virtual functions and mediated devices of the cards of a bus."""

    def __init__(self, bus: SimulatedBus) -> None:
        self._bus = bus

    def numvfs(self, path: Path, place: Path, count: int, timeout_s: float) -> None:
        """Apply a write to ``sriov_numvfs``: create ``count`` virtual functions of a card that has none, or remove all of them.

        Args:
            path: the file that is written.
            place: directory of the card.
            count: number of functions; 0 to remove all.
            timeout_s: longest wait until no process uses a removed function.
        """
        present = int(path.read_text())
        if count > int((place / "sriov_totalvfs").read_text()) or count < 0:
            raise refusal(errno.ERANGE, path)
        if count and present:
            raise refusal(errno.EBUSY, path)
        for number in range(present if not count else 0):
            address = link_name(place / f"virtfn{number}")
            function = self._bus.directory(address)
            self._bus.wait(path, self._bus.root / "dev/vfio" / link_name(function / "iommu_group"), timeout_s)
            self._bus.detach(address, link_name(function / "driver"))
            shutil.rmtree(self._bus.root / "sys/kernel/iommu_groups" / link_name(function / "iommu_group"))
            (place / f"virtfn{number}").unlink()
            shutil.rmtree(function)
        path.write_text(f"{count}\n")
        groups = self._bus.root / "sys/kernel/iommu_groups"
        quiet = (place / "sriov_drivers_autoprobe").read_text().strip() == "0"
        for number in range(count):
            slot_of, _, ordinal_of = place.name.rpartition(".")
            bus, _, slot = slot_of.rpartition(":")
            ordinal = int(slot, 16) * 8 + int(ordinal_of) + number + 1
            address = f"{bus}:{ordinal // 8:02x}.{ordinal % 8}"
            free = next(group for group in range(10_000) if not (groups / str(group)).exists())
            driver = (place / OURS).read_text().strip()
            self._bus.plug(SimulatedPci(address=address, driver="" if quiet else driver, group=free))
            (self._bus.directory(address) / OURS).write_text(driver + "\n")
            (self._bus.directory(address) / "physfn").symlink_to(place)
            (place / f"virtfn{number}").symlink_to(self._bus.directory(address))

    def create(self, path: Path, kind: Path, uuid: str) -> None:
        """Apply a write to the file ``create`` of a type: create a mediated device.

        Args:
            path: the file that is written.
            kind: directory of the type.
            uuid: UUID of the new device.
        """
        left = int((kind / "available_instances").read_text())
        there = self._bus.root / "sys/bus/mdev/devices" / uuid
        if there.exists():
            raise refusal(errno.EEXIST, path)
        if left < 1:
            raise refusal(errno.ENOSPC, path)
        (kind / "available_instances").write_text(f"{left - 1}\n")
        groups = self._bus.root / "sys/kernel/iommu_groups"
        free = next(group for group in range(10_000) if not (groups / str(group)).exists())
        (groups / str(free) / "devices").mkdir(parents=True)
        (self._bus.root / "dev/vfio" / str(free)).touch()
        there.mkdir(parents=True)
        (there / "mdev_type").symlink_to(kind)
        (there / "iommu_group").symlink_to(groups / str(free))
        (there / "remove").touch()

    def remove(self, path: Path, there: Path, timeout_s: float) -> None:
        """Apply a write to the file ``remove`` of a mediated device: remove the device.

        Args:
            path: the file that is written.
            there: directory of the device.
            timeout_s: longest wait until no process uses the device.
        """
        node = self._bus.root / "dev/vfio" / link_name(there / "iommu_group")
        self._bus.wait(path, node, timeout_s)
        instances = there / "mdev_type" / "available_instances"
        instances.write_text(f"{int(instances.read_text()) + 1}\n")
        shutil.rmtree((there / "iommu_group").resolve())
        node.unlink(missing_ok=True)
        shutil.rmtree(there)
