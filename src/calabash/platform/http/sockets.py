"""Unix sockets of the pool's API."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

from calabash.model.errors import CalabashError, Reason


def listening(path: Path, listener: socket.socket, *, mode: int = 0o666) -> None:
    """Bind a Unix socket to the path, set its mode and listen on it. Raises BAD_FILE for a path of another file type.

    Replaces an existing socket: the caller holds the pool's lock, so that socket belongs to a pool that has ended.
    """
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise CalabashError(f"{path} is not a socket", reason=Reason.BAD_FILE, hint="move it away")
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    path.chmod(mode)  # permissions are checked per request
    listener.listen(1024)
