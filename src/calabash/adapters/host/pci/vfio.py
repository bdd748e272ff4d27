"""Bind PCI devices to VFIO and return them to their host driver.

A device is given to ``vfio-pci`` by writing its ``driver_override``, unbinding it from its driver and binding it; it is
returned by unbinding it, emptying the override and probing the bus. The kernel protects no process: it unbinds a driver
whose files are open, and binds a device whose group can never be used. It also blocks: unbinding a device from VFIO
while a program holds it waits until the program releases it, and so does the next write about that device. Therefore
everything is checked first, every write has a deadline, a failed step is undone, and every call may be repeated.
``new_id`` is never written, because it takes every matching device.
"""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from calabash.adapters.host.children import run_program
from calabash.adapters.host.pci.devices import PciDevice, PciTree, pci_address
from calabash.adapters.host.sysfs_writer import BlockedError, KernelWriter, refused
from calabash.model.errors import CalabashError, Reason

WRITE_S = 10.0
_MODPROBE_S = 30.0
_DRIVER_APPEARS_S = 2.0
_POLL_S = 0.02

log = structlog.get_logger(__name__)


def is_vfio(driver: str) -> bool:
    """Return True if a driver passes devices to programs: ``vfio-pci``, or a variant like ``nvgrace_gpu_vfio_pci``."""
    return driver.replace("-", "_").endswith("vfio_pci")


def load_module(name: str) -> None:
    """Try to load a kernel module. Reports no error; the caller checks afterwards if the module is loaded."""
    try:
        run_program(["modprobe", "-q", name], timeout_s=_MODPROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("modprobe could not be run", module=name, error=str(error))


class Vfio:
    """Binds devices of a tree to VFIO and returns them.

    Args:
        tree: the PCI devices.
        writer: writes to files of the kernel.
        load: tries to load a kernel module.
        holders: returns a text that names the processes which have a file open; "" if there are none.
        timeout_s: longest time of one write.
    """

    def __init__(
        self,
        tree: PciTree,
        writer: KernelWriter,
        *,
        load: Callable[[str], None] = load_module,
        holders: Callable[[Path], str] = lambda _: "",
        timeout_s: float = WRITE_S,
    ) -> None:
        self.tree = tree
        self._writer = writer
        self._load = load
        self._holders = holders
        self._timeout_s = timeout_s

    # -- bind ----------------------------------------------------------------------------------------------------

    def require_ready(self, address: str) -> PciDevice:
        """Return the device if this machine can pass it through; changes nothing except loading modules.

        Raises CalabashError.
        """
        device = self.tree.get(address)
        if device.is_bridge:
            raise CalabashError(
                f"{address} is a bridge, which cannot be passed through", hint="name a device behind it"
            )
        if device.group < 0 or not self.tree.has_iommu():
            raise CalabashError(
                f"{address} is in no IOMMU group: its memory accesses cannot be confined",
                reason=Reason.UNHEALTHY,
                hint="enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on or amd_iommu=on",
            )
        if not device.translated:
            raise CalabashError(
                f"the IOMMU group of {address} belongs to vfio's no-IOMMU mode, which does not confine memory accesses",
                reason=Reason.UNHEALTHY,
                hint="boot with intel_iommu=on or amd_iommu=on, and do not set enable_unsafe_noiommu_mode",
            )
        self._require_modules(self.tree.vfio_driver(address))
        return device

    def bind(self, address: str) -> Path:
        """Bind the device to VFIO and return the file of its group; does nothing if it is bound already.

        Raises CalabashError after restoring the former state. If the reason is TIMEOUT, the kernel may still complete the
        step, so the caller must call ``give_back`` later.
        """
        device = self.require_ready(address)
        if not is_vfio(device.driver):
            try:
                self._bind(device, self.tree.vfio_driver(address))
            except CalabashError as error:
                self._undo(device, error)
                raise
        return self.group_file(device.group)

    def _bind(self, device: PciDevice, driver: str) -> None:
        place, name = self.tree.directory(device.address), device.address
        self._write(place / "driver_override", driver, f"{name} cannot be reserved for {driver}")
        if device.driver:
            self._unbind(name, device.driver)
        bus = self.tree.root / "sys/bus/pci/drivers" / driver
        self._write(
            bus / "bind",
            name,
            f"{driver} does not take {name}",
            {
                errno.ENOENT: f"the kernel's module {driver} is not loaded; modprobe {driver}",
                errno.EINVAL: "the kernel has no IOMMU for it; boot with intel_iommu=on or amd_iommu=on",
                errno.ENODEV: "it is gone, or its driver_override was emptied meanwhile; see `dmesg`",
                errno.EBUSY: "another driver has bound it meanwhile; see `lspci -k`",
            },
        )
        found = self.tree.get(name)
        if found.driver != driver:
            raise CalabashError(f"{name} was given to {driver} and is with {found.driver or 'no driver'}")
        if not self.group_file(found.group).exists():
            raise CalabashError(
                f"{name} is with {driver}, but {self.group_file(found.group)} has not appeared",
                hint="load the module vfio, and let /dev be the kernel's own (devtmpfs)",
            )

    def _undo(self, before: PciDevice, cause: CalabashError) -> None:
        try:
            self.give_back(before.address, before.driver)
        except CalabashError as error:
            log.error(
                "a device could not be returned to its driver",
                device=before.address,
                error=error.message,
                cause=cause.message,
            )

    def _require_modules(self, driver: str) -> None:
        if not self.tree.has_driver(driver):
            self._load(driver.replace("-", "_"))
        if not self.tree.has_driver(driver):
            raise CalabashError(
                f"the kernel's module {driver} is not loaded and could not be loaded",
                reason=Reason.UNHEALTHY,
                hint=f"modprobe {driver}",
            )
        if not self._has_type1():
            self._load("vfio_iommu_type1")
        if not self._has_type1():
            raise CalabashError(
                "no virtual machine could use the device: the kernel's module vfio_iommu_type1 is not loaded",
                reason=Reason.UNHEALTHY,
                hint="modprobe vfio_iommu_type1",
            )

    def _has_type1(self) -> bool:
        root = self.tree.root
        return (root / "sys/module/vfio_iommu_type1").exists() or (root / "dev/iommu").exists()

    # -- return to the host --------------------------------------------------------------------------------------

    def give_back(self, address: str, driver: str) -> None:
        """Return the device to the host; does nothing if that has been done.

        Args:
            driver: the driver that it had before; "" for none.

        Raises CalabashError(TIMEOUT) while a program holds the device: try again later. Other errors say what is left
        to do by hand.
        """
        device = self.tree.find(address)
        if device is None:
            return  # unplugged, or a virtual function that was removed
        place = self.tree.directory(address)
        if is_vfio(device.driver):
            self._unbind(address, device.driver)
        self._write(place / "driver_override", "\n", f"{address} cannot be released")
        if not driver or (device.driver and not is_vfio(device.driver)):
            return
        if device.physical and _off(self.tree.directory(device.physical) / "sriov_drivers_autoprobe"):
            log.info(
                "a virtual function stays without a driver, because its card has sriov_drivers_autoprobe off",
                device=address,
            )
            return
        self._write(self.tree.root / "sys/bus/pci/drivers_probe", address, f"the host does not take {address} back")
        self._require_driver(address, driver)

    def _require_driver(self, address: str, driver: str) -> None:
        until = time.monotonic() + _DRIVER_APPEARS_S
        while not self.tree.get(address).driver:
            if time.monotonic() > until:
                raise CalabashError(
                    f"{address} is back and no driver has taken it; it was with {driver}",
                    reason=Reason.UNHEALTHY,
                    hint=f"modprobe {driver}, then: echo {address} > /sys/bus/pci/drivers_probe",
                )
            time.sleep(_POLL_S)

    def _unbind(self, address: str, driver: str) -> None:
        try:
            self._write(
                self.tree.directory(address) / "driver/unbind", address, f"{driver} does not let go of {address}"
            )
        except CalabashError as error:
            # While the kernel waits, the device shows no driver any more, and nothing can be done with it.
            device = self.tree.find(address)
            if error.reason is Reason.TIMEOUT or (device is not None and device.driver == driver):
                raise

    # -- the rest ----------------------------------------------------------------------------------------------

    def group_file(self, group: int) -> Path:
        """Return the file that a program opens to use the devices of a group."""
        return self.tree.root / "dev/vfio" / str(group)

    def _write(self, path: Path, text: str, what: str, meanings: Mapping[int, str] | None = None) -> None:
        try:
            self._writer.write(path, text, timeout_s=self._timeout_s)
        except BlockedError as error:
            raise CalabashError(
                f"{what} within {self._timeout_s:g} s: {self._blocking(text, path)}",
                reason=Reason.TIMEOUT,
                hint="it completes when the program that uses the device releases it",
            ) from error
        except OSError as error:
            raise refused(error, what, meanings, otherwise=Reason.UNHEALTHY) from error

    def _blocking(self, text: str, path: Path) -> str:
        address = pci_address(text) or pci_address(path.parent.name)
        device = self.tree.find(address) if address else None
        who = self._holders(self.group_file(device.group)) if device is not None and device.group >= 0 else ""
        return f"held by {who}" if who else "the kernel waits for the program that holds it"


def _off(path: Path) -> bool:
    try:
        return path.read_text().strip() == "0"
    except OSError:
        return False
