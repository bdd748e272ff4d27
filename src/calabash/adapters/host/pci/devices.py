"""PCI devices as the kernel shows them: who they are, who drives them, and with whom they share an IOMMU group.

Everything is read from ``sys`` below a root that can be another than ``/``: a container sees the host's elsewhere, and
a simulated node has a tree of its own. A device is named by its address as sysfs writes it, ``0000:65:00.0``. Files are
read up to a bound and parsed strictly; what has gone meanwhile is None, what makes no sense is an error. Files whose
reading waits for whoever changes the device (``driver_override``, ``sriov_numvfs``, its ``uevent``) are never read.
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
    """One function of a PCI device.

    Args:
        class_code: 24 bits; the highest eight are the base class (3 display, 6 bridge, 0x12 accelerator).
        driver: who drives it; "" nobody.
        group: its IOMMU group; -1 when the machine's DMA is not translated.
        translated: False in a group that only pretends to be one (vfio's own no-IOMMU mode).
        vfs_total: virtual functions that it could have; 0 when it has no SR-IOV.
        vfs: addresses of those that it has now, by number.
        physical: the physical function behind a virtual one; "".
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
    def bridge(self) -> bool:
        """Whether it only leads to others."""
        return self.class_code >> 16 == 0x06

    @property
    def card(self) -> str:
        """The address without the function: what is plugged in as one."""
        return self.address.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualType:
    """A kind of virtual GPU that a function can become: the driver's identifier, its name, its memory, how many more."""

    id: str
    name: str
    memory_mib: int
    available: int


def pci_address(text: str) -> str:
    """``00000000:65:00.0`` as a driver's library writes it -> ``0000:65:00.0``; "" when it is none."""
    match = _ADDRESS.fullmatch(text.lower())
    if match is None:
        return ""
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}"


class PciTree:
    """The PCI devices below a root. Holds nothing: every answer is read anew."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self._bus = root / "sys/bus/pci"
        self._groups = root / "sys/kernel/iommu_groups"

    def place(self, address: str) -> Path:
        """Its directory. Raises BAD_REQUEST for what is no address."""
        if _ADDRESS.fullmatch(address) is None:
            raise CalabashError(f"{address[:40]!r} is no PCI address", hint="like 0000:65:00.0; see `lspci -D`")
        return self._bus / "devices" / address

    def translates(self) -> bool:
        """Whether an IOMMU is switched on."""
        try:
            return any(os.scandir(self._groups))
        except OSError:
            return False

    def addresses(self) -> tuple[str, ...]:
        """All of them, sorted."""
        try:
            names = [entry.name for entry in os.scandir(self._bus / "devices")]
        except OSError:
            return ()
        return tuple(sorted(name for name in names[:_DEVICES_MAX] if _ADDRESS.fullmatch(name)))

    def find(self, address: str) -> PciDevice | None:
        """One device; None when there is none of that address."""
        place = self.place(address)
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
        """As ``find``. Raises NOT_FOUND."""
        device = self.find(address)
        if device is None:
            raise CalabashError(f"there is no PCI device {address}", reason=Reason.NOT_FOUND, hint="see `lspci -D`")
        return device

    def members(self, group: int) -> tuple[PciDevice, ...]:
        """All devices of an IOMMU group, by address."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._groups / str(group) / "devices"))
        except OSError:
            return ()
        found = (self.find(name) for name in names[:_DEVICES_MAX] if _ADDRESS.fullmatch(name))
        return tuple(device for device in found if device is not None)

    def root_of(self, address: str) -> str:
        """The root of the tree that it is below, ``pci0000:00``; "" where it is not known."""
        try:
            parts = os.readlink(self.place(address)).split("/")
        except OSError:
            return ""
        return next((part for part in parts if _ROOT.fullmatch(part)), "")

    def nodes(self, address: str) -> tuple[Path, ...]:
        """The files in ``/dev`` by which programs reach it through its present driver."""
        place = self.place(address)
        found = set()
        for directory, files in _below(place.resolve(), _DEPTH_MAX):
            if "dev" in files and "uevent" in files:
                name = re.search(r"^DEVNAME=([\w/.-]{1,128})$", _text(directory / "uevent") or "", re.MULTILINE)
                if name and ".." not in name[1]:
                    found.add(self.root / "dev" / name[1])
        return tuple(sorted(found))

    def has_driver(self, driver: str) -> bool:
        """Whether a driver of that name is loaded."""
        return _PLAIN.fullmatch(driver) is not None and (self._bus / "drivers" / driver).is_dir()

    def vfio_driver(self, address: str) -> str:
        """The kernel's own choice for handing it out: a variant made for this device, else ``vfio-pci``."""
        name = (_text(self.place(address) / "modalias") or "").replace("pci:", "vfio_pci:", 1)
        best = ("", "vfio_pci")
        release = os.uname().release
        for line in _lines(self.root / "lib/modules" / release / "modules.alias", "alias vfio_pci:"):
            _, pattern, module = [*line.split(" "), "", ""][:3]
            if name and fnmatch.fnmatchcase(name, pattern) and _PLAIN.fullmatch(module):
                best = max(best, (pattern.replace("*", ""), module), key=lambda found: len(found[0]))
        return VFIO_PCI if best[1] == "vfio_pci" else best[1]

    def virtual_types(self, address: str) -> tuple[VirtualType, ...]:
        """Kinds of virtual GPU that can be made on this function now: of the driver's own list, else mediated ones."""
        place = self.place(address)
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
    """``A100-10C`` -> 10240: the vendor puts the gibibytes last in the name; 0 when there are none."""
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
    """Directories at and below ``place`` with the names of their files; links are not followed."""
    try:
        entries = list(os.scandir(place))
    except OSError:
        return
    yield place, {entry.name for entry in entries}
    for entry in entries if depth else ():
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path), depth - 1)


def _text(path: Path) -> str | None:
    """The file as text; None when it is not there or has just gone. Raises BAD_FILE for one that never ends."""
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
        raise CalabashError(f"{path} says {text[:40]!r}, which is no number", reason=Reason.BAD_FILE)
    return int(text, 16)


def _number(path: Path, absent: int) -> int:
    text = _text(path)
    if text is None:
        return absent
    if _NUMBER.fullmatch(text) is None:
        raise CalabashError(f"{path} says {text[:40]!r}, which is no number", reason=Reason.BAD_FILE)
    return int(text)


def _link(path: Path) -> str:
    """The last part of where a link leads; "" when there is none."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
