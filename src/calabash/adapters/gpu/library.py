"""Paths of the native libraries, and the environment that selects a program's simulated node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import calabash

SIM_ENVIRONMENT = "CALABASH_SIM"
_NATIVE = Path(calabash.__file__).resolve().parent / "_native"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """Files of a host's driver whose file system is mounted below this process's root.

    Args:
        root: the host's root directory in this process; None if PATH and the loader of this process find all there is.
        libraries: directory with the driver's libraries and no others, for the driver's programs that this process
            starts.
    """

    root: Path | None = None
    libraries: Path | None = None


OWN_FILES = DriverFiles()


def shim_library() -> Path:
    """Return the path of the library that is preloaded into programs that have a slice."""
    return _NATIVE / "lib" / "libcalabash.so"


def simulated_library_dir() -> Path:
    """Return the directory of the simulated libraries and their tool, for LD_LIBRARY_PATH."""
    return _NATIVE / "simgpu"


def remote_library_dir() -> Path:
    """Return the directory of the libraries for programs with remote devices, and of the worker."""
    return _NATIVE / "remote"


def forwarding_libraries() -> tuple[Path, ...]:
    """Return the libraries that forward a program's driver calls to a remote worker."""
    return tuple(remote_library_dir() / name for name in ("libcuda.so.1", "libnvidia-ml.so.1"))


def simulated_environment(state: Path, inherited: str = "") -> dict[str, str]:
    """Return the variables that a program needs to run on the simulated node of a state file.

    Args:
        inherited: LD_LIBRARY_PATH of the program so far.
    """
    libraries = str(simulated_library_dir())
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{inherited}" if inherited else libraries,
        SIM_ENVIRONMENT: str(state),
    }
