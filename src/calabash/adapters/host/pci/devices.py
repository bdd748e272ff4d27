"""PCI devices as sysfs shows them: identity, driver, IOMMU group, and virtual functions.

Everything is read from ``sys`` below a root directory. This is not always ``/``: a container has the host's root
mounted elsewhere, and a simulated node has a tree of its own. A device is named by its address as sysfs writes it,
``0000:65:00.0``. Files are read up to a bound and parsed strictly. For a device that does not exist any more the result
is None; malformed content is an error.
Files whose reading waits for a writer of the device (``driver_override``, ``sriov_numvfs``, ``uevent``) are never read.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from calabash.model.errors import CalabashError, Reason

VFIO_PCI = "vfio-pci"
TEXT_BYTES_MAX = 64 << 10
_ALIASES_BYTES_MAX = 32 << 20
_DEVICES_MAX = 8192
_DEPTH_MAX = 6
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_VIRTUAL = re.compile(r"virtfn(\d{1,5})")
_HEX = re.compile(r"0x[0-9a-f]{1,8}")
_NUMBER = re.compile(r"-?\d{1,9}")
_FRAMEBUFFER = re.compile(r"framebuffer=(\d{1,7})M\b")
_TYPE_LINE = re.compile(r"\s*(\d{1,6})\s*:\s*(\S.{0,127}?)\s*")
_SIZE_IN_NAME = re.compile(r"-(\d{1,4})[A-Z]{1,4}$")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """Function of a PCI device.

    Args:
        class_code: 24 bits; the highest eight are the base class (3 display, 6 bridge, 0x12 accelerator).
        driver: bound driver; "" for none.
        group: its IOMMU group; -1 if the machine's DMA is not translated.
        translated: False in a group of vfio's no-IOMMU mode, which does not isolate devices.
        vfs_total: number of virtual functions that it could have; 0 without SR-IOV.
        vfs: addresses of its present virtual functions, by number.
        physical: if this is a virtual function, the address of its physical function; else "".
    """

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str
    group: int = -1
    translated: bool = True
    numa_node: int = -1
    vfs_total: int = 0
    vfs: tuple[str, ...] = ()
    physical: str = ""

    @property
    def is_bridge(self) -> bool:
        """True if the device is a bridge."""
        return self.class_code >> 16 == 0x06

    @property
    def card(self) -> str:
        """Address without the function, common to all functions of the card."""
        return self.address.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualType:
    """Type of virtual GPU that can be created on a function; ``available`` is the number that can still be created."""

    id: str
    name: str
    memory_mib: int
    available: int


def pci_address(text: str) -> str:
    """Return an address like ``00000000:65:00.0`` in sysfs form, ``0000:65:00.0``; "" if it is malformed."""
    match = _ADDRESS.fullmatch(text.lower())
    if match is None:
        return ""
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}"


class PciTree:
    """PCI devices below a root. Keeps no state: every answer is read anew."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self._bus = root / "sys/bus/pci"
        self._groups = root / "sys/kernel/iommu_groups"

    def directory(self, address: str) -> Path:
        """Return the device's directory. Raises CalabashError(BAD_REQUEST) if the address is malformed."""
        if _ADDRESS.fullmatch(address) is None:
            raise CalabashError(
                f"{address[:40]!r} is not a PCI address", hint="write it like 0000:65:00.0; see `lspci -D`"
            )
        return self._bus / "devices" / address

    def has_iommu(self) -> bool:
        """Return True if an IOMMU is enabled."""
        try:
            return any(os.scandir(self._groups))
        except OSError:
            return False

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of all devices, sorted."""
        try:
            names = [entry.name for entry in os.scandir(self._bus / "devices")]
        except OSError:
            return ()
        return tuple(sorted(name for name in names[:_DEVICES_MAX] if _ADDRESS.fullmatch(name)))

    def find(self, address: str) -> PciDevice | None:
        """Return the device of an address; None if there is none."""
        place = self.directory(address)
        vendor, device = _hex(place / "vendor"), _hex(place / "device")
        class_code = _hex(place / "class")
        if vendor is None or device is None or class_code is None:
            return None
        group = _link(place / "iommu_group")
        return PciDevice(
            address=address,
            vendor=vendor,
            device=device,
            class_code=class_code,
            driver=_link(place / "driver"),
            group=int(group) if group.isdigit() else -1,
            translated=_text(place / "iommu_group" / "name") != "vfio-noiommu",
            numa_node=_number(place / "numa_node", -1),
            vfs_total=max(0, _number(place / "sriov_totalvfs", 0)),
            vfs=_virtual_functions(place),
            physical=_link(place / "physfn"),
        )

    def get(self, address: str) -> PciDevice:
        """Return the device of an address. Raises CalabashError(NOT_FOUND) if there is none."""
        device = self.find(address)
        if device is None:
            raise CalabashError(f"there is no PCI device {address}", reason=Reason.NOT_FOUND, hint="see `lspci -D`")
        return device

    def members(self, group: int) -> tuple[PciDevice, ...]:
        """Return all devices of an IOMMU group, by address."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._groups / str(group) / "devices"))
        except OSError:
            return ()
        found = (self.find(name) for name in names[:_DEVICES_MAX] if _ADDRESS.fullmatch(name))
        return tuple(device for device in found if device is not None)

    def root_of(self, address: str) -> str:
        """Return the root bus of the device, like ``pci0000:00``; "" if it is not known."""
        try:
            parts = os.readlink(self.directory(address)).split("/")
        except OSError:
            return ""
        return next((part for part in parts if _ROOT.fullmatch(part)), "")

    def nodes(self, address: str) -> tuple[Path, ...]:
        """Return the files in ``/dev`` by which programs open the device through its current driver."""
        place = self.directory(address)
        found = set()
        for directory, files in _below(place.resolve(), _DEPTH_MAX):
            if "dev" in files and "uevent" in files:
                name = re.search(r"^DEVNAME=([\w/.-]{1,128})$", _text(directory / "uevent") or "", re.MULTILINE)
                if name and ".." not in name[1]:
                    found.add(self.root / "dev" / name[1])
        return tuple(sorted(found))

    def has_driver(self, driver: str) -> bool:
        """Return True if a driver of that name is loaded."""
        return _PLAIN.fullmatch(driver) is not None and (self._bus / "drivers" / driver).is_dir()

    def vfio_driver(self, address: str) -> str:
        """Return the vfio driver that the kernel prefers for the device: a variant for it, else ``vfio-pci``."""
        name = (_text(self.directory(address) / "modalias") or "").replace("pci:", "vfio_pci:", 1)
        best = ("", "vfio_pci")
        release = os.uname().release
        for line in _lines(self.root / "lib/modules" / release / "modules.alias", "alias vfio_pci:"):
            _, pattern, module = [*line.split(" "), "", ""][:3]
            if name and fnmatch.fnmatchcase(name, pattern) and _PLAIN.fullmatch(module):
                best = max(best, (pattern.replace("*", ""), module), key=lambda found: len(found[0]))
        return VFIO_PCI if best[1] == "vfio_pci" else best[1]

    def virtual_types(self, address: str) -> tuple[VirtualType, ...]:
        """Return the types of virtual GPU that can be created on this function now.

        They are read from the list of NVIDIA's driver, or from the kernel's list of mediated devices if the driver has none.
        """
        place = self.directory(address)
        listed = _text(place / "nvidia" / "creatable_vgpu_types")
        if listed is not None:
            return tuple(
                VirtualType(id=match[1], name=match[2], memory_mib=memory_in_name(match[2]), available=1)
                for line in listed.splitlines()
                if (match := _TYPE_LINE.fullmatch(line)) is not None
            )
        try:
            kinds = sorted(entry.name for entry in os.scandir(place / "mdev_supported_types"))
        except OSError:
            return ()
        found = (_mediated(place / "mdev_supported_types" / kind) for kind in kinds if _PLAIN.fullmatch(kind))
        return tuple(kind for kind in found if kind is not None)


def memory_in_name(name: str) -> int:
    """Return the memory in MiB that a type name states in GiB: 10240 for ``A100-10C``; 0 if it states none."""
    size = _SIZE_IN_NAME.search(name)
    return int(size[1]) << 10 if size else 0


def _mediated(place: Path) -> VirtualType | None:
    name = _text(place / "name") or place.name
    size = _FRAMEBUFFER.search(_text(place / "description") or "")
    available = _number(place / "available_instances", -1)
    if available < 0:
        return None
    memory_mib = int(size[1]) if size else memory_in_name(name)
    return VirtualType(id=place.name, name=name, memory_mib=memory_mib, available=available)


def _virtual_functions(place: Path) -> tuple[str, ...]:
    try:
        numbered = [(int(m[1]), e.name) for e in os.scandir(place) if (m := _VIRTUAL.fullmatch(e.name))]
    except OSError:
        return ()
    return tuple(address for _, name in sorted(numbered) if (address := _link(place / name)))


def _below(place: Path, depth: int) -> Iterator[tuple[Path, set[str]]]:
    """Yield the directory ``place`` and those up to ``depth`` levels below it, each with the names of its entries.

    Symbolic links are not followed.
    """
    try:
        entries = list(os.scandir(place))
    except OSError:
        return
    yield place, {entry.name for entry in entries}
    for entry in entries if depth else ():
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path), depth - 1)


def _text(path: Path) -> str | None:
    """Return the file's text; None if it is missing. Raises BAD_FILE if it is longer than TEXT_BYTES_MAX."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        content = os.read(descriptor, TEXT_BYTES_MAX + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if len(content) > TEXT_BYTES_MAX:
        raise CalabashError(f"{path} is longer than {TEXT_BYTES_MAX} bytes", reason=Reason.BAD_FILE)
    return content.decode("ascii", errors="replace").strip()


def _lines(path: Path, start: str) -> Iterator[str]:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            for line in file.read(_ALIASES_BYTES_MAX).splitlines():
                if line.startswith(start):
                    yield line
    except OSError:
        return


def _hex(path: Path) -> int | None:
    text = _text(path)
    if text is None:
        return None
    if _HEX.fullmatch(text) is None:
        raise CalabashError(f"{path} contains {text[:40]!r}, which is not a number", reason=Reason.BAD_FILE)
    return int(text, 16)


def _number(path: Path, absent: int) -> int:
    text = _text(path)
    if text is None:
        return absent
    if _NUMBER.fullmatch(text) is None:
        raise CalabashError(f"{path} contains {text[:40]!r}, which is not a number", reason=Reason.BAD_FILE)
    return int(text)


def _link(path: Path) -> str:
    """Return the last component of a link's target; "" if there is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
