"""Check of the free disk space for the agent's directory. No allocation is granted without space for the journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.model.units import MIB

FREE_MIB_MIN = 4  # enough for some thousand records of the journal and its write-ahead log
FREE_MIB_AGAIN = 8  # hysteresis: a nearly full disk does not change the node's state with each write
FREE_FILES_MIN = 64


class DiskRoom:
    """Free space of the file system of a directory.

    Args:
        directory: the directory.
        statvfs: ``os.statvfs``, or a replacement for tests.
    """

    def __init__(self, directory: Path, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> None:
        self._directory = directory
        self._statvfs = statvfs
        self._is_full = False

    def full(self) -> CalabashError | None:
        """Return the error with which new allocations are refused; None if there is enough space."""
        try:
            found = self._statvfs(self._directory)
        except OSError as error:
            self._is_full = True
            return CalabashError(
                f"the file system of {self._directory} cannot be read: {error.strerror}",
                reason=Reason.BAD_FILE,
                hint="make sure that the agent's directory exists and is writable; running programs are not affected",
            )
        free_mib = found.f_bavail * found.f_frsize // MIB
        least_mib = FREE_MIB_AGAIN if self._is_full else FREE_MIB_MIN
        no_files = found.f_files > 0 and found.f_favail < FREE_FILES_MIN
        self._is_full = free_mib < least_mib or no_files
        if not self._is_full:
            return None
        what = f"fewer than {FREE_FILES_MIN} inodes" if no_files else f"less than {least_mib} MiB"
        return CalabashError(
            f"the disk of {self._directory} is full: {what} are free",
            reason=Reason.DISK_FULL,
            hint="free some space; running programs are not affected",
        )
