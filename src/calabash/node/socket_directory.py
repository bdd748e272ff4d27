"""Where the sockets of a part of the pool lie: in its home, unless that has too long a name for a socket's."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from calabash.model.errors import CalabashError, Reason

PATH_BYTES_MAX = 107


def socket_directory(home: Path, name: str, *, longest: str, make: bool = True) -> Path:
    """A directory of ours for sockets with paths of at most ``longest`` below it; ``make``: where it lies elsewhere than in the
    home, it is made. Raises CalabashError(NOT_PERMITTED)."""
    own = home / name
    if len(os.fsencode(own)) + len(longest) <= PATH_BYTES_MAX:
        return own
    short = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]
    base = Path("/run" if os.geteuid() == 0 else "/tmp")  # noqa: S108 - whose it is is looked at
    directory = base / f"calabash-{name}-{short}"
    if make:
        directory.mkdir(mode=0o711, exist_ok=True)
    elif not directory.exists():
        return directory
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise CalabashError(f"{directory} is somebody else's", reason=Reason.NOT_PERMITTED, hint="use a shorter home")
    return directory
