"""Slots on disk: ``alloc/<allocation>/`` with limits, usage and lease, made and removed as a whole.

A slot is written under a hidden name, synced, and renamed; it is removed by renaming it away first. So a name that can
be seen is always a whole slot, and what a crash leaves under a hidden name is rubbish that the next start sweeps.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from calabash.agent import pages
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.seams.host.files import Lease, disk_full_is_a_reason, sync_directory

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_COMING, _GOING = ".new-", ".gone-"


class Slots:
    """The slots below one directory, which belongs to the pool's owner and is writable by nobody else."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with disk_full_is_a_reason(f"cannot make {root}"):
            root.mkdir(mode=0o755, parents=True, exist_ok=True)

    def path(self, allocation: AllocationId) -> Path:
        """Where the slot is or would be. Raises CalabashError for an id that is no plain name."""
        if _NAME.fullmatch(allocation) is None:
            raise CalabashError(f"allocation {allocation!r} is not a plain name", reason=Reason.NOT_FOUND)
        return self.root / allocation

    def create(self, spec: pages.SlotSpec) -> Path:
        """Make the slot and return its directory; a slot of that name that exists is kept as it is.

        Raises CalabashError(DISK_FULL); then nothing of it is left.
        """
        final = self.path(spec.allocation)
        if final.is_dir():
            return final
        coming = self.root / (_COMING + spec.allocation)
        try:
            with disk_full_is_a_reason(f"cannot write the slot of {spec.allocation}"):
                shutil.rmtree(coming, ignore_errors=True)
                pages.create_slot(coming, spec)
                _keep_for(coming / pages.LEASE_FILE, spec.tenant_uid)
                coming.chmod(0o755)  # whatever the umask is: tenants of other users must be able to look in
                sync_directory(coming)
                coming.rename(final)
                sync_directory(self.root)
        except BaseException:
            shutil.rmtree(coming, ignore_errors=True)
            raise
        return final

    def remove(self, allocation: AllocationId) -> None:
        """Take the slot away; nothing when there is none."""
        going = self.root / (_GOING + allocation)
        shutil.rmtree(going, ignore_errors=True)
        try:
            self.path(allocation).rename(going)
        except FileNotFoundError:
            return
        sync_directory(self.root)
        shutil.rmtree(going, ignore_errors=True)

    def exists(self, allocation: AllocationId) -> bool:
        """Whether there is a whole slot of that name."""
        return self.path(allocation).is_dir()

    def all(self) -> list[AllocationId]:
        """All whole slots."""
        return sorted(AllocationId(e.name) for e in self.root.iterdir() if _NAME.fullmatch(e.name) and e.is_dir())

    def sweep(self) -> None:
        """Remove what crashes have left half made or half removed."""
        for entry in self.root.iterdir():
            if entry.name.startswith((_COMING, _GOING)):
                shutil.rmtree(entry, ignore_errors=True)

    def lease(self, allocation: AllocationId) -> Lease:
        """The pool's view of the slot's lease. Raises OSError when the slot is damaged."""
        return Lease(self.path(allocation) / pages.LEASE_FILE)


def _keep_for(lease: Path, uid: int | None) -> None:
    """Nobody else may lock a user's lease: it would never come back. Root's programs may become other users."""
    if uid and os.geteuid() == 0:
        os.chown(lease, uid, -1)
        lease.chmod(0o600)
