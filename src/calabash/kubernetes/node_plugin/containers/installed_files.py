"""What containers of tenants are given from this program, put where the host's runtime can mount it from.

The agent may itself run from an image, whose files no other container can see. A file is installed under a name that
holds its content's hash and is never changed: containers that were started with an earlier release keep theirs.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from calabash.model.errors import CalabashError, Reason


def install(source: Path, directory: Path) -> Path:
    """A copy of ``source`` at ``directory/<hash>/<name>``, readable by all. Raises CalabashError(BAD_FILE, DISK_FULL)."""
    try:
        content = source.read_bytes()
        target = directory / hashlib.sha256(content).hexdigest()[:16] / source.name
        if target.exists() and target.stat().st_size == len(content):
            return target
        for made in (directory, target.parent):
            made.mkdir(mode=0o755, parents=True, exist_ok=True)
            made.chmod(0o755)
        coming = target.with_name(f"{source.name}.{secrets.token_hex(4)}")
        with coming.open("xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o755)
        coming.rename(target)
    except OSError as error:
        full = error.errno in {28, 122}
        raise CalabashError(
            f"cannot install {source.name} in {directory}: {error.strerror}",
            reason=Reason.DISK_FULL if full else Reason.BAD_FILE,
            hint="free some space"
            if full
            else "the agent's directory must be writable, and on a file system with exec",
        ) from error
    return target
