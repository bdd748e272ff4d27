"""Copies of the product's files on the host, from which the runtime mounts them into containers.

Copies are needed because the agent may run from an image, whose files no other container can see. A file is installed
in a directory that is named after the hash of its content, and is never changed. Containers that were started by an
earlier release of the agent therefore keep the file of that release.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from calabash.model.errors import CalabashError, Reason


def install(source: Path, directory: Path) -> Path:
    """Copy ``source`` to ``directory/<hash>/<name>``, readable by all; return the path.

    Raises:
        CalabashError: BAD_FILE or DISK_FULL if it cannot be written.
    """
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
            else "make sure that the agent's directory is writable and not mounted with noexec",
        ) from error
    return target
