"""Slots as directories of plain files, for pools that cannot mount a file system. The pages may be swapped to a disk.

A slot is written under a hidden name, synced to the disk, and renamed. To be removed it is renamed to a hidden name
first. So a slot with a visible name is always complete. A hidden one was left by a crash and is removed at the next
start.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from calabash.adapters.host.acl import READ, READ_WRITE, SEARCH, share_with
from calabash.adapters.host.failures import failure
from calabash.adapters.host.files import disk_full_is_a_reason, sync_directory
from calabash.model.request import AllocationId
from calabash.node.slots.content import SlotSpec, limits_bytes, usage_bytes
from calabash.node.slots.names import LEASE_FILE, LIMITS_FILE, USAGE_FILE, is_slot_name
from calabash.node.slots.open_pages import SlotPages

_COMING, _GOING = ".new-", ".gone-"


class FileSlots(SlotPages):
    """Slots below one directory, which belongs to the user of the pool and is writable by no other user."""

    form = "files"
    sealed = False

    def create(self, spec: SlotSpec) -> None:
        """Create a slot; an existing one of that name is kept.

        Raises:
            CalabashError: DISK_FULL; nothing of the slot is left.
        """
        final = self.path(spec.allocation)
        if final.is_dir():
            return
        coming = self.root / (_COMING + final.name)
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

    def bind(self, allocation: AllocationId, group: int) -> None:
        """Do nothing: plain files cannot be sealed."""

    def remove(self, allocation: AllocationId) -> None:
        """Remove a slot; do nothing if there is none."""
        path = self.path(allocation)
        going = self.root / (_GOING + path.name)
        shutil.rmtree(going, ignore_errors=True)
        try:
            path.rename(going)
        except FileNotFoundError:
            return
        finally:
            self.drop(allocation)
        sync_directory(self.root)
        shutil.rmtree(going, ignore_errors=True)

    def exists(self, allocation: AllocationId) -> bool:
        """Return True if there is a complete slot of that allocation."""
        return self.path(allocation).is_dir()

    def all(self) -> list[AllocationId]:
        """Return the allocations of all complete slots."""
        names = [entry.name for entry in self.root.iterdir() if is_slot_name(entry.name) and entry.is_dir()]
        return sorted(self.names.allocation_of(name) for name in names)

    def sweep(self) -> None:
        """Remove slots that a crash has left partly created or removed."""
        for entry in self.root.iterdir():
            if entry.name.startswith((_COMING, _GOING)):
                shutil.rmtree(entry, ignore_errors=True)


def create_slot(directory: Path, spec: SlotSpec) -> None:
    """Write the files of a slot; the limits page is written last, so that a slot with a limits page is complete.

    Raises:
        CalabashError: DISK_FULL, NOT_PERMITTED or BAD_REQUEST; no partial file has its final name.
    """
    try:
        shared = spec.tenant_uid is None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = spec.tenant_uid if os.geteuid() == 0 else None
        _open_to(directory, owner)
        _write_file(directory / USAGE_FILE, usage_bytes(spec), mode=0o666 if shared else 0o600, owner=owner)
        if not spec.leaseless:
            # No other user may lock the lease: it could be held forever. Programs of root may change their user.
            _write_file(directory / LEASE_FILE, b"", mode=0o600 if owner else 0o644, owner=owner)
        _write_file(directory / LIMITS_FILE, limits_bytes(spec), mode=0o644, owner=None)
    except OSError as error:
        hint = "the pool must be able to write its own directory"
        raise failure(error, f"cannot write the slot {directory}", hint=hint) from error


def _open_to(directory: Path, tenant: int | None) -> None:
    """Restrict a directory to root and the tenant if the file system supports it; ``tenant`` None: no restriction."""
    directory.chmod(0o755 if tenant is None else 0o700)  # regardless of the umask
    if not tenant:
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        share_with(descriptor, tenant, owner=READ_WRITE | SEARCH, user=READ | SEARCH)
    except OSError:
        os.fchmod(descriptor, 0o755)  # the file system has no access control lists
    finally:
        os.close(descriptor)


def _write_file(path: Path, content: bytes, *, mode: int, owner: int | None) -> None:
    """Write a file under a temporary name, sync and rename it; ``owner`` None: it belongs to the user of the pool."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            # Write all bytes, never sparse: a full disk must be an error here and not SIGBUS in the tenant.
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
