"""Where the simulated driver pair is, and how a program is told which simulated node it runs on."""

from __future__ import annotations

from pathlib import Path

import calabash

SIM_ENVIRONMENT = "CALABASH_SIM"


def simulated_library_dir() -> Path:
    """Directory of the simulated libraries and their tool, for LD_LIBRARY_PATH."""
    return Path(calabash.__file__).resolve().parent / "_native" / "simgpu"
