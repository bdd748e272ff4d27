"""Small things that stand in for parts that a test is not about."""

from __future__ import annotations

from pathlib import Path

from calabash.model.allocation import AllocationRecord
from calabash.model.request import AllocationId


class NothingListed:
    """Devices that list nothing of anybody."""

    def clear(self, record: AllocationRecord) -> bool:
        del record
        return True

    def forget(self, allocation: AllocationId) -> None:
        """There is nothing to forget."""


def stand_in_smi(directory: Path, script: str) -> Path:
    """An ``nvidia-smi`` in this directory that does this; where the words are written with which it is started."""
    path = directory / "nvidia-smi"
    path.write_text(f'#!/bin/sh\necho "$*" >>{directory}/asked\n{script}\n')
    path.chmod(0o755)
    return directory / "asked"
