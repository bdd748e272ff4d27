"""Where the native libraries are, and how a program is told which simulated node it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import calabash

SIM_ENVIRONMENT = "CALABASH_SIM"
_NATIVE = Path(calabash.__file__).resolve().parent / "_native"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """The driver of a host whose file system we see somewhere below our own.

    Args:
        root: where its own root is for us; None: what our own PATH and loader find is all there is.
        libraries: a directory with its libraries and with no others, for programs of it that run beside us.
    """

    root: Path | None = None
    libraries: Path | None = None


OWN_FILES = DriverFiles()


def shim_library() -> Path:
    """The library that programs with a slice are started with."""
    return _NATIVE / "lib" / "libcalabash.so"


def simulated_library_dir() -> Path:
    """Directory of the simulated libraries and their tool, for LD_LIBRARY_PATH."""
    return _NATIVE / "simgpu"


def remote_library_dir() -> Path:
    """Directory of the libraries that stand in for a driver where there is none, and of the worker at the other end."""
    return _NATIVE / "remote"


def forwarding_libraries() -> tuple[Path, ...]:
    """Those of them that a program loads."""
    return tuple(remote_library_dir() / name for name in ("libcuda.so.1", "libnvidia-ml.so.1"))


def simulated_environment(state: Path, inherited: str = "") -> dict[str, str]:
    """What a program needs to run on the simulated node of that state; ``inherited`` is its LD_LIBRARY_PATH so far."""
    libraries = str(simulated_library_dir())
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{inherited}" if inherited else libraries,
        SIM_ENVIRONMENT: str(state),
    }
