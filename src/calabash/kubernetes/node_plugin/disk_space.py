"""Room on the disk of the agent's directory: without it no allocation can be journalled, so nothing is given out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.model.units import MIB

FREE_MIB_MIN = 4  # some thousand records of the journal and its write-ahead log
FREE_MIB_AGAIN = 8  # a disk about to be full does not change the node's state with each write
FREE_FILES_MIN = 64


class DiskRoom:
    """Looks at the file system of one directory.

    Args:
        statvfs: as ``os.statvfs``.
    """

    def __init__(self, directory: Path, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> None:
        self._directory = directory
        self._statvfs = statvfs
        self._is_full = False

    def full(self) -> CalabashError | None:
        """Return the error for which nothing is given out now; None where there is room."""
        try:
            found = self._statvfs(self._directory)
        except OSError as error:
            self._is_full = True
            return CalabashError(
                f"the file system of {self._directory} cannot be read: {error.strerror}",
                reason=Reason.BAD_FILE,
                hint="the agent's directory must be there and writable; running programs are not affected",
            )
        free_mib = found.f_bavail * found.f_frsize // MIB
        least_mib = FREE_MIB_AGAIN if self._is_full else FREE_MIB_MIN
        no_files = found.f_files > 0 and found.f_favail < FREE_FILES_MIN
        self._is_full = free_mib < least_mib or no_files
        if not self._is_full:
            return None
        what = f"fewer than {FREE_FILES_MIN} files" if no_files else f"less than {least_mib} MiB"
        return CalabashError(
            f"the disk of {self._directory} is full: {what} can be written",
            reason=Reason.DISK_FULL,
            hint="free some space; running programs are not affected",
        )
