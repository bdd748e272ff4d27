"""Slots in memory: each slot is a separate tmpfs, exactly as large as its pages and owned by root.

A tenant may write to ``usage`` and can do nothing else with it. The tenant is not the owner of the file, so it can
neither change its mode nor take a file lease on it, and the file cannot grow because the file system is full. The mount
outlives the pool, so programs of a slice can start processes while no pool runs. ``limits`` is written last, so a slot
with this file is complete; a slot without it was left by a crash and is removed at the next start.

If the kernel supports it, the directory is made immutable after the pages have been written; the slot is then *sealed*.
Only root of the machine can make a directory immutable, in any namespace. So programs can distinguish a sealed slot
from an imitation (native/shim/slot.c).
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from calabash.adapters.host.acl import READ, READ_WRITE, SEARCH, make_immutable, share_with
from calabash.adapters.host.cgroups.marks import can_mark
from calabash.adapters.host.failures import failure, raise_if_exhausted
from calabash.adapters.host.mounts import mount, unmount
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.slots.content import SlotDevice, SlotSpec, limits_bytes, usage_bytes
from calabash.node.slots.names import LIMITS_FILE, USAGE_FILE, SlotNames, is_slot_name
from calabash.node.slots.open_pages import SlotPages

_INODES = 4  # the directory, two pages, and one to spare
_STACKED_MAX = 16
_PROBE = AllocationId("probe-of-the-file-system")


class TmpfsSlots(SlotPages):
    """Slots of a pool of root, below a directory that no other user can write to."""

    form = "tmpfs"

    def __init__(self, root: Path, *, mode: int = 0o711, names: SlotNames | None = None) -> None:
        super().__init__(root, mode=mode, names=names)
        self.sealed = False

    def works(self) -> bool:
        """Return True if a slot for another user can be created here. Sets ``sealed`` if slots can also be sealed."""
        spec = SlotSpec(allocation=_PROBE, devices=(SlotDevice(uuid=DeviceUuid("none")),), tenant_uid=1)
        try:
            self.create(spec)
            self.sealed = self._can_seal()
        except CalabashError:
            return False
        finally:
            self.remove(_PROBE)
        return True

    def _can_seal(self) -> bool:
        try:
            make_immutable(self.path(_PROBE))
        except OSError as error:
            raise_if_exhausted(error)
            return False
        return can_mark()

    def create(self, spec: SlotSpec) -> None:
        """Create a slot; an existing one of that name is kept.

        Raises:
            CalabashError: DISK_FULL if there is no memory, or NOT_PERMITTED; nothing of the slot is left.
        """
        path = self.path(spec.allocation)
        if self.exists(spec.allocation):
            return
        usage, limits = usage_bytes(spec), limits_bytes(spec)
        _clear(path)
        try:
            path.mkdir(mode=0o700)
            size, shared = len(usage) + len(limits), spec.tenant_uid is None
            mode = "755" if shared else "700"
            mount("calabash", path, "tmpfs", f"nosuid,nodev,noexec,size={size},nr_inodes={_INODES},mode={mode}")
            if spec.tenant_uid:
                _admit(path, spec.tenant_uid)
            _write(path / USAGE_FILE, usage, mode=0o666 if shared else 0o600, user=spec.tenant_uid, rights=READ_WRITE)
            coming = path / ("." + LIMITS_FILE)
            _write(coming, limits, mode=0o644 if shared else 0o600, user=spec.tenant_uid, rights=READ)
            coming.rename(path / LIMITS_FILE)
        except OSError as error:
            _clear(path)
            hint = "the pool must be able to mount below its own directory"
            raise failure(error, f"cannot make the slot {path}", hint=hint, full_hint="free some memory") from error
        except BaseException:
            _clear(path)
            raise

    def bind(self, allocation: AllocationId, group: int) -> None:
        """Write the control group to the limits, and seal the slot if that is supported."""
        path = self.path(allocation)
        self.pages(allocation).limits.set_group(group, path.name)
        if not self.sealed:
            return
        try:
            make_immutable(path)
        except OSError as error:
            hint = "the pool must keep the capability CAP_LINUX_IMMUTABLE"
            raise failure(error, f"cannot seal the slot {path}", hint=hint) from error

    def remove(self, allocation: AllocationId) -> None:
        """Remove a slot; do nothing if there is none. Processes that map a page keep its memory until they end."""
        _clear(self.path(allocation))
        self.drop(allocation)

    def exists(self, allocation: AllocationId) -> bool:
        """Return True if there is a complete slot of that allocation."""
        return os.path.isfile(f"{self.path(allocation)}/{LIMITS_FILE}")

    def all(self) -> list[AllocationId]:
        """Return the allocations of all complete slots."""
        names = [entry.name for entry in self.root.iterdir() if is_slot_name(entry.name)]
        return sorted(found for name in names if self.exists(found := self.names.allocation_of(name)))

    def sweep(self) -> None:
        """Remove slots that a crash has left partly created or removed."""
        whole = {self.names.name_of(allocation) for allocation in self.all()}
        for entry in self.root.iterdir():
            if entry.name not in whole:
                _clear(entry)


def _clear(path: Path) -> None:
    for _ in range(_STACKED_MAX):
        if not os.path.ismount(path):
            break
        with suppress(OSError):
            unmount(path)
    with suppress(OSError):
        path.rmdir()
        return
    shutil.rmtree(path, ignore_errors=True)


def _admit(directory: Path, uid: int) -> None:
    """Let a user list a directory and open its files."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        share_with(descriptor, uid, owner=READ_WRITE | SEARCH, user=READ | SEARCH)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, *, mode: int, user: int | None, rights: int) -> None:
    """Write a new file with all its bytes, never sparse.

    If memory is short, this call must fail. A sparse file would cause SIGBUS in the tenant's program later.

    Args:
        user: a user who gets ``rights`` (bits as ``READ``) in addition to the permissions ``mode``; None or 0: none.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode)
        if user:
            share_with(descriptor, user, user=rights)
    finally:
        os.close(descriptor)
