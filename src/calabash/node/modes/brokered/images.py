"""Files in which workers cache images of GPU code, one for each tenant of each user, so that programs send their code once.

The files are in a directory of the pool's home that only the pool may enter. Workers run as changing users and may open no
file there; a worker host inherits the open file. The pool never reads the content, and a worker uses only an image whose hash
a program has named, so the pool limits only the size: a worker empties a file that becomes too long, and the pool
truncates it if the worker does not.
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
    """Open file of one tenant. The tenant's workers keep the file below ``bytes_max``."""

    descriptor: int
    bytes_max: int

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker host that inherits the descriptor (native/remote/worker/image_store.h)."""
        return {"CALABASH_IMAGES": f"fd:{self.descriptor}", "CALABASH_IMAGES_MAX": str(self.bytes_max)}

    def close(self) -> None:
        os.close(self.descriptor)


class ImageFiles:
    """The image files of one pool.

    Args:
        directory: directory of the files, made with the first one.
        each_bytes_max: largest size of a file.
        all_bytes_max: largest size of all files together; the least recently used files are removed first.
    """

    def __init__(
        self, directory: Path, *, each_bytes_max: int = EACH_BYTES_MAX, all_bytes_max: int = ALL_BYTES_MAX
    ) -> None:
        self._directory = directory
        self._each_bytes_max = each_bytes_max
        self._all_bytes_max = all_bytes_max

    def open(self, *, uid: int, tenant: str) -> ImageFile | None:
        """Open or create the tenant's file; the caller closes it.

        Returns None if that fails, and logs the error; the tenant's programs then send their code each time.
        """
        path = self._directory / f"{uid}-{hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()}"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._directory.chmod(0o700)
            self.bound()
            descriptor = self._open(path)
            os.utime(descriptor)  # records the last use
        except OSError as error:
            log.warning("the file of code images cannot be opened", file=str(path), error=error.strerror)
            return None
        return ImageFile(descriptor, self._each_bytes_max)

    def bound(self) -> None:
        """Limit the size and the number of the files.

        A file that is too long is truncated to 0 bytes. If the files together are too long, or too many, the least
        recently used ones are removed.
        """
        left = self._all_bytes_max
        for number, (path, found) in enumerate(self._by_use()):
            size = found.st_size
            try:
                if size > self._each_bytes_max:
                    log.warning("a file of code images is too long and is emptied", file=str(path), bytes=size)
                    os.truncate(path, 0)
                    size = 0
                left -= size
                if left < 0 or number >= FILES_MAX:
                    path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("the size of a file of code images cannot be limited", file=str(path), error=error.strerror)

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
            log.warning("the files of code images cannot be listed", error=error.strerror)
        return sorted(found, key=lambda file: file[1].st_mtime_ns, reverse=True)

    @staticmethod
    def _open(path: Path) -> int:
        """Open or create a file. A file is replaced if it is not a regular one of the pool's user with a single link.

        Raises OSError.
        """
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
