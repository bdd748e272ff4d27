"""Images of code that workers keep for their tenants, so that a program's second start sends none: a file for each tenant of
each user, below the pool's home, where only the pool may go.

A worker is somebody else each time and may open nothing there: its host is given the open file. What a file holds is never
read by us, and a worker uses what has the hash that a program has named. So all there is to see to is size: a worker empties
the file when it becomes too long, and one that does not finds it cut by us.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import structlog

from calabash.model.units import MIB

EACH_BYTES_MAX = 512 * MIB
ALL_BYTES_MAX = 4096 * MIB
FILES_MAX = 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A tenant's file, open. ``bytes_max`` is how long its workers let it become."""

    descriptor: int
    bytes_max: int

    def environment(self) -> dict[str, str]:
        """What a host is told of it that has inherited the descriptor (native/remote/worker/image_store.h)."""
        return {"CALABASH_IMAGES": f"fd:{self.descriptor}", "CALABASH_IMAGES_MAX": str(self.bytes_max)}

    def close(self) -> None:
        os.close(self.descriptor)


class ImageFiles:
    """The files of one pool.

    Args:
        directory: made when the first file is.
        each_bytes_max, all_bytes_max: how long a file may be, and all of them together; the one unused longest goes first.
    """

    def __init__(
        self, directory: Path, *, each_bytes_max: int = EACH_BYTES_MAX, all_bytes_max: int = ALL_BYTES_MAX
    ) -> None:
        self._directory = directory
        self._each_bytes_max = each_bytes_max
        self._all_bytes_max = all_bytes_max

    def open(self, *, uid: int, tenant: str) -> ImageFile | None:
        """The tenant's file, which is made where there is none; the caller closes it. None: its programs send their code
        each time, and why is in the log."""
        path = self._directory / f"{uid}-{hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()}"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._directory.chmod(0o700)
            self.bound()
            descriptor = self._open(path)
            os.utime(descriptor)  # when it was used last
        except OSError as error:
            log.warning("images of code are not kept", file=str(path), error=error.strerror)
            return None
        return ImageFile(descriptor, self._each_bytes_max)

    def bound(self) -> None:
        """Cut what is too long, and remove what has been unused longest when all of it is too much."""
        left = self._all_bytes_max
        for number, (path, found) in enumerate(self._by_use()):
            size = found.st_size
            try:
                if size > self._each_bytes_max:
                    log.warning("a file of images is longer than it may be, and is emptied", file=str(path), bytes=size)
                    os.truncate(path, 0)
                    size = 0
                left -= size
                if left < 0 or number >= FILES_MAX:
                    path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("a file of images cannot be bounded", file=str(path), error=error.strerror)

    def _by_use(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append((Path(entry.path), status))
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("files of images cannot be looked at", error=error.strerror)
        return sorted(found, key=lambda file: file[1].st_mtime_ns, reverse=True)

    @staticmethod
    def _open(path: Path) -> int:
        """Raises OSError; what is no plain file of ours is replaced."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        for _ in range(2):
            try:
                descriptor = os.open(path, flags, 0o600)
            except OSError:
                path.unlink()
                continue
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid():
                return descriptor
            os.close(descriptor)
            path.unlink()
        return os.open(path, flags | os.O_EXCL, 0o600)
