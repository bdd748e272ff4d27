"""Paths of the native libraries, and the environment that selects a program's simulated node."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import calabash
from calabash.adapters.host.children import run_program

SIM_ENVIRONMENT = "CALABASH_SIM"
_NATIVE = Path(calabash.__file__).resolve().parent / "_native"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """Files of the driver of a host, for a process in a container that has the host's file system mounted.

    Args:
        root: directory at which the host's root is mounted; None if this process runs on the host itself, where PATH and
            the dynamic loader find the driver.
        libraries: directory that has only the driver's libraries. Programs of the driver that this process starts get
            it in LD_LIBRARY_PATH. None if these programs find their libraries without it.
    """

    root: Path | None = None
    libraries: Path | None = None


OWN_FILES = DriverFiles()


_DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_LISTING_LIMIT_S = 10.0


@functools.cache
def driver_directories() -> tuple[Path, ...]:
    """Return the directories of the driver's libraries on this machine, as the dynamic loader finds them.

    They are those of ``LD_LIBRARY_PATH`` and of the loader's cache that have a library of the driver, and the directories
    of the files behind these names. The driver loads further libraries from there. Empty if there is no driver.
    """
    searched = [Path(name) for name in os.environ.get("LD_LIBRARY_PATH", "").split(":") if name.startswith("/")]
    files = [directory / name for directory in searched for name in _DRIVER_LIBRARIES]
    files += _in_loader_cache()
    found = [directory for file in files if file.is_file() for directory in (file.parent, file.resolve().parent)]
    return tuple(dict.fromkeys(found))


def _in_loader_cache() -> list[Path]:
    try:
        listed = run_program(["/sbin/ldconfig", "-p"], timeout_s=_LISTING_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    names = "|".join(map(re.escape, _DRIVER_LIBRARIES))
    return [Path(path) for path in re.findall(rf"^\s*(?:{names}) \(.*\) => (/.*)$", listed.stdout, re.MULTILINE)]


def shim_library() -> Path:
    """Return the path of the library that is preloaded into programs that have a slice."""
    return _NATIVE / "lib" / "libcalabash.so"


def simulated_library_dir() -> Path:
    """Return the directory of the simulated libraries and their tool, for LD_LIBRARY_PATH."""
    return _NATIVE / "simgpu"


def remote_library_dir() -> Path:
    """Return the directory of the libraries for programs with remote devices, and of the worker."""
    return _NATIVE / "remote"


def tls_library() -> Path:
    """Return the path of the library with TLS, which the worker and the forwarding libraries load from beside themselves.

    The file does not exist if this build has no TLS.
    """
    return remote_library_dir() / "libcalabash-tls.so"


def forwarding_libraries() -> tuple[Path, ...]:
    """Return the libraries that a program needs to forward its driver calls to a remote worker."""
    drivers = tuple(remote_library_dir() / name for name in ("libcuda.so.1", "libnvidia-ml.so.1"))
    return (*drivers, tls_library()) if tls_library().is_file() else drivers


def simulated_environment(state: Path, inherited: str = "") -> dict[str, str]:
    """Return the variables that a program needs to run on the simulated node of a state file.

    Args:
        state: the state file.
        inherited: value of LD_LIBRARY_PATH that the program would have otherwise; its directories are searched last.
    """
    libraries = str(simulated_library_dir())
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{inherited}" if inherited else libraries,
        SIM_ENVIRONMENT: str(state),
    }
