"""The Unix sockets that a pool is asked on."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

from calabash.model.errors import CalabashError, Reason


def listening(path: Path, listener: socket.socket, *, mode: int = 0o666) -> None:
    """Bind a socket of the pool's; everybody may ask it unless ``mode`` says otherwise.

    We hold the lock, so a socket that is there belongs to a dead pool.
    """
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise CalabashError(f"{path} is not a socket", reason=Reason.BAD_FILE, hint="move it away")
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    path.chmod(mode)  # what they may do is decided by who they are
    listener.listen(1024)
