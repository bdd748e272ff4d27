"""Programs that come with a driver: where they are, and what they need to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from calabash.adapters.gpu.library import OWN_FILES, SIM_ENVIRONMENT, DriverFiles, simulated_library_dir
from calabash.adapters.host.children import LIBRARIES, child_environment, find_program
from calabash.adapters.host.libraries import follow

OWN_DIRECTORIES = ("/usr/local/nvidia/bin",)  # where some distributions of containers put them
HOST_DIRECTORIES = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin", "/bin")


def driver_program(name: str, environment: Mapping[str, str], files: DriverFiles = OWN_FILES) -> Path | None:
    """The simulated one on a simulated node, else ours, else the host's, as we see it; None when there is none."""
    if SIM_ENVIRONMENT in environment:
        path = simulated_library_dir() / name
        return path if path.is_file() else None
    return find_program(name, also=OWN_DIRECTORIES) or _on_host(name, files.root)


def program_environment(
    program: Path, environment: Mapping[str, str], files: DriverFiles = OWN_FILES
) -> dict[str, str]:
    """Return all variables of the program: a PATH that begins with its own directory, where the programs are that it starts,
    and for a program of the host the host's libraries."""
    own = child_environment(LIBRARIES)
    own["PATH"] = f"{program.parent}:{own['PATH']}"
    if files.root is not None and program.is_relative_to(files.root) and files.libraries is not None:
        own["LD_LIBRARY_PATH"] = str(files.libraries)
    return own | dict(environment)


def _on_host(name: str, root: Path | None) -> Path | None:
    """What the links of distributions lead to, so that what it starts is found beside it."""
    if root is None:
        return None
    found = (follow(root, f"{directory}/{name}") for directory in HOST_DIRECTORIES)
    return next((path for path in found if path is not None), None)
