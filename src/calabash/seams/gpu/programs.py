"""Programs that come with a driver: where they are, and what they need to run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from calabash.seams.gpu.library import OWN_FILES, SIM_ENVIRONMENT, DriverFiles, simulated_library_dir
from calabash.seams.host.libraries import follow

HOST_DIRECTORIES = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin", "/bin")


def driver_program(name: str, environment: Mapping[str, str], files: DriverFiles = OWN_FILES) -> Path | None:
    """The simulated one on a simulated node, else ours, else the host's, as we see it; None when there is none."""
    if SIM_ENVIRONMENT in environment:
        path = simulated_library_dir() / name
        return path if path.is_file() else None
    own = shutil.which(name)
    return Path(own) if own else _on_host(name, files.root)


def program_environment(
    program: Path, environment: Mapping[str, str], files: DriverFiles = OWN_FILES
) -> dict[str, str]:
    """Its whole environment: ours without what concerns CUDA, and for a program of the host the host's libraries."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "LD_PRELOAD"))}
    if files.root is not None and program.is_relative_to(files.root):
        inherited["PATH"] = f"{program.parent}:{inherited.get('PATH', os.defpath)}"
        if files.libraries is not None:
            inherited["LD_LIBRARY_PATH"] = str(files.libraries)
    return inherited | dict(environment)


def _on_host(name: str, root: Path | None) -> Path | None:
    """What the links of distributions lead to, so that what it starts is found beside it."""
    if root is None:
        return None
    found = (follow(root, f"{directory}/{name}") for directory in HOST_DIRECTORIES)
    return next((path for path in found if path is not None), None)
