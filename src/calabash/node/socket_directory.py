"""Choose the directory of a component's Unix sockets: in the pool's home, or elsewhere if paths would be too long.

The kernel allows PATH_BYTES_MAX bytes for the path of a socket.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from calabash.model.errors import CalabashError, Reason

PATH_BYTES_MAX = 107


def socket_directory(home: Path, name: str, *, longest: str, make: bool = True) -> Path:
    """Return a directory for sockets: below the home, or below /run or /tmp if socket paths would be too long.

    Args:
        home: the pool's home directory.
        name: name of the component's directory.
        longest: the longest path of a socket relative to the directory, with a leading slash.
        make: create the directory if it is not in the home directory; there the caller creates it.

    Raises:
        CalabashError: NOT_PERMITTED if the directory exists and belongs to another user.
    """
    own = home / name
    if len(os.fsencode(own)) + len(longest) <= PATH_BYTES_MAX:
        return own
    short = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]
    base = Path("/run" if os.geteuid() == 0 else "/tmp")  # noqa: S108 - the owner is checked below
    directory = base / f"calabash-{name}-{short}"
    if make:
        directory.mkdir(mode=0o711, exist_ok=True)
    elif not directory.exists():
        return directory
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise CalabashError(
            f"{directory} does not belong to the user of the pool",
            reason=Reason.NOT_PERMITTED,
            hint="use a shorter home",
        )
    return directory
