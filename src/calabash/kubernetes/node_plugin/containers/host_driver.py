"""The host's NVIDIA driver as seen from the agent's image: files to mount into containers, and NVML for the agent.

If the agent's container was started by NVIDIA's container runtime, the dynamic loader finds NVML in it. Otherwise the
driver's files are searched in the host's file system, which is mounted in the container: in the directories that are
named in the host's loader cache, and in those in which installers put them.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.gpu.library import DriverFiles
from calabash.adapters.host.libraries import libraries_named
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.model.errors import CalabashError, Reason
from calabash.node.devices.inventory import no_devices

_COMMON_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MORE_DIRECTORIES = ("/usr/local/nvidia/lib64", "/usr/lib/nvidia", "/usr/lib")
_NVML = "libnvidia-ml.so.1"
_CUDA = "libcuda.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDriver:
    """Files and nodes of the host's driver that go into a container.

    Args:
        libraries: paths on the host; each file is mounted in every directory of ``library_directories``, under each of
            its names (``names_of``).
        nodes: device nodes that every container with a device gets, whichever device it is.
        state: state file of a simulated node; None on a real machine.
    """

    libraries: tuple[Path, ...] = ()
    nodes: tuple[Path, ...] = ()
    state: Path | None = None


def library_directories(machine: str = "") -> tuple[str, ...]:
    """Return the directories in which dynamic loaders search by default: that of Debian and that of Red Hat.

    Args:
        machine: CPU architecture as in ``uname -m``; "" for that of this machine.
    """
    return (f"/usr/lib/{machine or platform.machine()}-linux-gnu", "/usr/lib64")


def find_nvml(host: Path, *, root: str = "/") -> Path | None:
    """Return the path in the agent's container of the host's NVML library; None if the library is not found.

    The library is needed if the dynamic loader finds no NVML library in the container.

    Args:
        host: directory in which the host's file system is mounted.
        root: root of the driver's files on the host.
    """
    places = (*library_directories(), *_MORE_DIRECTORIES)
    return next(libraries_named(host / root.lstrip("/"), _NVML, places), None)


class NoDriverError(CalabashError):
    """The node has no GPU driver, so it probably has no devices."""


def no_cards(settings: AgentSettings, nvml: Path | None) -> CalabashError:
    """Return the error for a node without devices.

    Args:
        nvml: the NVML library that was found; None if there is none.
    """
    if settings.sim_state is not None:
        return no_devices()
    base = settings.host / settings.driver_root.lstrip("/")
    if nvml is None:
        return NoDriverError(
            f"this node has no NVIDIA driver: {_NVML} is neither in the agent's container nor below {base}",
            reason=Reason.NO_DEVICES,
            hint="install the driver, set agent.driverRoot if it is elsewhere, or exclude nodes without"
            " devices by agent.nodeSelector",
        )
    return CalabashError(
        f"the NVIDIA driver of this node ({nvml}) reports no device",
        reason=Reason.NO_DEVICES,
        hint="check that its kernel module is loaded: run `nvidia-smi` on the node",
    )


def find_driver(host: Path, version: str, *, root: str = "/") -> HostDriver:
    """Return the libraries of a driver version, and the device nodes that all devices share.

    Args:
        host: directory in which the host's file system is mounted. The result has paths on the host, without it.
        version: version of the driver (``580.95.05``); "" to search for no libraries.
        root: root of the driver's files on the host.

    Raises:
        CalabashError: NO_DEVICES if libcuda of that version is not found.
    """
    base = host / root.lstrip("/")
    found: dict[str, Path] = {}
    directories = [base / directory.lstrip("/") for directory in (*library_directories(), *_MORE_DIRECTORIES)]
    if version:
        directories += [file.parent for name in (_CUDA, _NVML) for file in libraries_named(base, name, ())]
    for directory in dict.fromkeys(directories):
        for file in sorted(directory.glob(f"lib*.so.{version}")) if version else ():
            found.setdefault(file.name, Path("/") / file.relative_to(host))
    if version and f"libcuda.so.{version}" not in found:
        raise CalabashError(
            f"the driver reports version {version}, but libcuda.so.{version} is not found below {base}",
            reason=Reason.NO_DEVICES,
            hint="set agent.driverRoot to the root of the driver's files on the host",
        )
    nodes = tuple(Path("/dev") / name for name in _COMMON_NODES if (host / "dev" / name).is_char_device())
    return HostDriver(libraries=tuple(found.values()), nodes=nodes)


def names_of(library: Path) -> tuple[str, ...]:
    """Return the names under which containers get a library.

    ``libcuda.so.580.95.05`` is also ``libcuda.so.1`` and ``libcuda.so``.
    """
    stem, _, version = library.name.partition(".so.")
    names = [library.name]
    if version != "1":
        names.append(f"{stem}.so.1")
    if stem in {"libcuda", "libnvidia-ml"}:
        names.append(f"{stem}.so")
    return tuple(names)


def programs_of(host: Path, directory: Path, *, root: str = "/") -> DriverFiles:
    """Return the files that let programs of the host's driver run in the agent's container.

    The programs (``nvidia-smi``, for example) must run with the driver's libraries but with the C library of the
    agent's image. They therefore search ``directory``, which contains links to the driver's libraries only
    (``link_libraries``).

    Args:
        host: directory in which the host's file system is mounted.
        directory: directory of the links.
        root: root of the driver's files on the host.
    """
    return DriverFiles(root=host / root.lstrip("/"), libraries=directory)


def link_libraries(driver: HostDriver, host: Path, directory: Path) -> None:
    """Fill the directory of ``programs_of`` with links to the driver's libraries, and remove outdated links.

    Raises:
        CalabashError: BAD_FILE if the directory cannot be written.
    """
    wanted = {name: host / str(library).lstrip("/") for library in driver.libraries for name in names_of(library)}
    try:
        directory.mkdir(mode=0o755, exist_ok=True)
        for link in directory.iterdir():
            if link.name not in wanted:
                link.unlink()
        for name, file in wanted.items():
            link = directory / name
            if not link.is_symlink() or link.readlink() != file:
                link.unlink(missing_ok=True)
                link.symlink_to(file)
    except OSError as error:
        raise CalabashError(
            f"cannot link the driver's libraries in {directory}: {error.strerror}", reason=Reason.BAD_FILE
        ) from error


def simulated_driver(libraries: Path, state: Path) -> HostDriver:
    """Return the driver of a simulated node: the simulated libraries in ``libraries``, and the node's state file."""
    files = tuple(libraries / name for name in ("libcuda.so.1", "libnvidia-ml.so.1"))
    return HostDriver(libraries=files, state=state)
