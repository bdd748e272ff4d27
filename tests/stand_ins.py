"""Small stand-ins for parts that a test is not about."""

from __future__ import annotations

from pathlib import Path

from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId


class NothingListed:
    """Device registry that lists no processes."""

    def is_clear(self, record: AllocationRecord) -> bool:
        del record
        return True

    def discard(self, allocation: AllocationId) -> None:
        """Do nothing: nothing is recorded."""


def stand_in_smi(directory: Path, script: str) -> Path:
    """Write an ``nvidia-smi`` that runs a shell script and appends its arguments to ``asked``; return its path."""
    path = directory / "nvidia-smi"
    path.write_text(f'#!/bin/sh\necho "$*" >>{directory}/asked\n{script}\n')
    path.chmod(0o755)
    return directory / "asked"
