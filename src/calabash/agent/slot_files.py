"""Slots as directories of plain files, for pools that cannot mount: every word of it may be swapped to a disk.

A slot is written under a hidden name, synced, and renamed; it is removed by renaming it away first. So a name that can
be seen is always a whole slot, and what a crash leaves under a hidden name is left over from it; the next start removes it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from calabash.agent.slot_content import SlotSpec, limits_bytes, usage_bytes
from calabash.agent.slot_names import LEASE_FILE, LIMITS_FILE, USAGE_FILE, is_slot_name
from calabash.agent.slot_pages import SlotPages
from calabash.model.request import AllocationId
from calabash.seams.host.failures import failure
from calabash.seams.host.files import disk_full_is_a_reason, sync_directory

_COMING, _GOING = ".new-", ".gone-"


class FileSlots(SlotPages):
    """The slots below one directory, which belongs to the pool's owner and is writable by nobody else."""

    form = "files"

    def create(self, spec: SlotSpec) -> None:
        """Make the slot; a slot of that name that exists is kept as it is.

        Raises CalabashError(DISK_FULL); then nothing of it is left.
        """
        final = self.path(spec.allocation)
        if final.is_dir():
            return
        coming = self.root / (_COMING + spec.allocation)
        try:
            with disk_full_is_a_reason(f"cannot write the slot of {spec.allocation}"):
                shutil.rmtree(coming, ignore_errors=True)
                create_slot(coming, spec)
                sync_directory(coming)
                coming.rename(final)
                sync_directory(self.root)
        except BaseException:
            shutil.rmtree(coming, ignore_errors=True)
            raise

    def remove(self, allocation: AllocationId) -> None:
        """Take the slot away; nothing when there is none."""
        going = self.root / (_GOING + allocation)
        shutil.rmtree(going, ignore_errors=True)
        try:
            self.path(allocation).rename(going)
        except FileNotFoundError:
            return
        finally:
            self.drop(allocation)
        sync_directory(self.root)
        shutil.rmtree(going, ignore_errors=True)

    def exists(self, allocation: AllocationId) -> bool:
        """Whether there is a whole slot of that name."""
        return self.path(allocation).is_dir()

    def all(self) -> list[AllocationId]:
        """All whole slots."""
        return sorted(AllocationId(e.name) for e in self.root.iterdir() if is_slot_name(e.name) and e.is_dir())

    def sweep(self) -> None:
        """Remove what crashes have left half made or half removed."""
        for entry in self.root.iterdir():
            if entry.name.startswith((_COMING, _GOING)):
                shutil.rmtree(entry, ignore_errors=True)


def create_slot(directory: Path, spec: SlotSpec) -> None:
    """Write the files of a slot; ``limits`` appears last and whole, so a reader sees all or nothing.

    Raises CalabashError (DISK_FULL, NOT_PERMITTED, BAD_REQUEST) and leaves no half-made file with a final name.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.chmod(0o755)  # whatever the umask is: tenants of other users must be able to look in
        shared = spec.tenant_uid is None
        owner = spec.tenant_uid if os.geteuid() == 0 else None
        _write_file(directory / USAGE_FILE, usage_bytes(spec), mode=0o666 if shared else 0o600, owner=owner)
        if not spec.leaseless:
            # Nobody else may lock a user's lease: it would never come back. Root's programs may become other users.
            _write_file(directory / LEASE_FILE, b"", mode=0o600 if owner else 0o644, owner=owner)
        _write_file(directory / LIMITS_FILE, limits_bytes(spec), mode=0o644, owner=None)
    except OSError as error:
        hint = "the pool must be able to write its own directory"
        raise failure(error, f"cannot write the slot {directory}", hint=hint) from error


def _write_file(path: Path, content: bytes, *, mode: int, owner: int | None) -> None:
    """``owner``: whose the file becomes; None: ours."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            # Written out, never sparse: a full disk must show here and not as SIGBUS in the tenant.
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if owner is not None:
                os.fchown(descriptor, owner, -1)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
