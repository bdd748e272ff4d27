"""Programs that come with a driver: their paths and the environment that they need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from calabash.adapters.gpu.library import OWN_FILES, SIM_ENVIRONMENT, DriverFiles, simulated_library_dir
from calabash.adapters.host.children import LIBRARIES, child_environment, find_program
from calabash.adapters.host.libraries import follow

OWN_DIRECTORIES = ("/usr/local/nvidia/bin",)  # where some container platforms put them
HOST_DIRECTORIES = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin", "/bin")


def driver_program(name: str, environment: Mapping[str, str], files: DriverFiles = OWN_FILES) -> Path | None:
    """Return the path of a driver's program; None if there is none.

    On a simulated node this is the simulated program. Otherwise the system in which this process runs is searched
    first, and then the host that ``files`` describes.
    """
    if SIM_ENVIRONMENT in environment:
        path = simulated_library_dir() / name
        return path if path.is_file() else None
    return find_program(name, also=OWN_DIRECTORIES) or _on_host(name, files.root)


def program_environment(
    program: Path, environment: Mapping[str, str], files: DriverFiles = OWN_FILES
) -> dict[str, str]:
    """Return all variables of the program.

    PATH begins with the program's own directory, which has the programs that it starts. For a program of the host,
    LD_LIBRARY_PATH has the host's driver libraries.
    """
    own = child_environment(LIBRARIES)
    own["PATH"] = f"{program.parent}:{own['PATH']}"
    if files.root is not None and program.is_relative_to(files.root) and files.libraries is not None:
        own["LD_LIBRARY_PATH"] = str(files.libraries)
    return own | dict(environment)


def _on_host(name: str, root: Path | None) -> Path | None:
    """Return the path of a program in the host's file system, mounted at ``root``; None if there is none.

    Symbolic links are resolved, because the program searches for other programs in its own directory.
    """
    if root is None:
        return None
    found = (follow(root, f"{directory}/{name}") for directory in HOST_DIRECTORIES)
    return next((path for path in found if path is not None), None)
