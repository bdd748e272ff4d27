"""The driver of the host, seen from the agent's own image: which of its files go into containers, and NVML for ourselves.

With NVIDIA's container runtime the loader finds NVML in the agent's container. Without it, the host's files are looked at
where the host's file system is mounted: by the host's cache of the loader, and in the directories that installers use.
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
    """What of the host's driver goes into a container.

    Args:
        libraries: files of the host; each is mounted under its own name in every directory of ``library_directories``.
        nodes: device nodes that every container with a device gets.
        state: of a simulated node; None on a machine with cards.
    """

    libraries: tuple[Path, ...] = ()
    nodes: tuple[Path, ...] = ()
    state: Path | None = None


def library_directories(machine: str = "") -> tuple[str, ...]:
    """Where loaders look without being told: Debian's directory and Red Hat's."""
    return (f"/usr/lib/{machine or platform.machine()}-linux-gnu", "/usr/lib64")


def find_nvml(host: Path, *, root: str = "/") -> Path | None:
    """NVML of the host, as we see it; for a process whose own loader has none."""
    places = (*library_directories(), *_MORE_DIRECTORIES)
    return next(libraries_named(host / root.lstrip("/"), _NVML, places), None)


def no_cards(settings: AgentSettings, nvml: Path | None) -> CalabashError:
    """This node has nothing to give out; ``nvml`` is what was found of its driver."""
    if settings.sim_state is not None:
        return no_devices()
    base = settings.host / settings.driver_root.lstrip("/")
    if nvml is None:
        return CalabashError(
            f"this node has no NVIDIA driver: {_NVML} was neither given to the agent nor is it below {base}",
            reason=Reason.NO_DEVICES,
            hint="install the driver, set agent.driverRoot where it is elsewhere, or keep the agent off nodes without"
            " cards by agent.nodeSelector",
        )
    return CalabashError(
        f"the NVIDIA driver of this node ({nvml}) shows no card",
        reason=Reason.NO_DEVICES,
        hint="is its kernel module loaded? `nvidia-smi` on the node says more",
    )


def find_driver(host: Path, version: str, *, root: str = "/") -> HostDriver:
    """The libraries of that driver version, and the nodes that all devices share.

    Args:
        host: where the host's file system is seen; what is found is named as the host names it.
        root: the driver's own root on the host.

    Raises CalabashError(NO_DEVICES) where the driver's library for programs is in none of its places.
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
            f"the driver answers as {version}, but libcuda.so.{version} is not found below {base}",
            reason=Reason.NO_DEVICES,
            hint="set agent.driverRoot to where the driver's files begin on the host",
        )
    nodes = tuple(Path("/dev") / name for name in _COMMON_NODES if (host / "dev" / name).is_char_device())
    return HostDriver(libraries=tuple(found.values()), nodes=nodes)


def names_of(library: Path) -> tuple[str, ...]:
    """``libcuda.so.580.95.05`` is also looked for as ``libcuda.so.1``; the linker's own name costs nothing more."""
    stem, _, version = library.name.partition(".so.")
    names = [library.name]
    if version != "1":
        names.append(f"{stem}.so.1")
    if stem in {"libcuda", "libnvidia-ml"}:
        names.append(f"{stem}.so")
    return tuple(names)


def programs_of(host: Path, directory: Path, *, root: str = "/") -> DriverFiles:
    """What lets programs of the host's driver run beside us: they are taken as they are, with its libraries, but with the
    C library of our own image. So ``directory`` will have links to the libraries of the driver alone."""
    return DriverFiles(root=host / root.lstrip("/"), libraries=directory)


def link_libraries(driver: HostDriver, host: Path, directory: Path) -> None:
    """The directory of ``programs_of``, as that driver fills it. Raises CalabashError."""
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
    """The simulated pair over the state of one node."""
    files = tuple(libraries / name for name in ("libcuda.so.1", "libnvidia-ml.so.1"))
    return HostDriver(libraries=files, state=state)
