"""Slots in memory: each is a tmpfs of its own, just as large as its pages and owned by root.

A tenant may write into ``usage`` and can do nothing else to it: it is not the owner, so it can neither change the mode
nor take a lease, and there is no room for it to grow. The mount outlives the pool, so programs of a slice start new
processes while no pool runs. ``limits`` appears last, so a slot that has it is whole; whatever else a crash leaves is
unmounted and removed at the next start.

Where the kernel can, the directory is made immutable once the pages are in it. Nobody but root of the machine can make
such a directory, in whatever namespaces, so programs tell a slot from an imitation by it (native/shim/slot.c).
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from calabash.adapters.host.acl import READ, READ_WRITE, SEARCH, make_immutable, share_with
from calabash.adapters.host.cgroups.marks import can_mark
from calabash.adapters.host.failures import failure, require_told
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
    """The slots of a pool of root, below a directory that nobody else writes to."""

    form = "tmpfs"

    def __init__(self, root: Path, *, mode: int = 0o711, names: SlotNames | None = None) -> None:
        super().__init__(root, mode=mode, names=names)
        self.sealed = False

    def works(self) -> bool:
        """Return True if a slot can be made here for another user; find out whether it can be sealed."""
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
            require_told(error)
            return False
        return can_mark()

    def create(self, spec: SlotSpec) -> None:
        """Make the slot; one of that name that exists is kept as it is.

        Raises CalabashError (DISK_FULL: no memory is left, NOT_PERMITTED); then nothing of it is left.
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
        """Name the control group in the limits, and seal the slot where that is possible."""
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
        """Take the slot away; nothing when there is none. Who still maps a page keeps that memory until it ends."""
        _clear(self.path(allocation))
        self.drop(allocation)

    def exists(self, allocation: AllocationId) -> bool:
        """Whether there is a whole slot of that name."""
        return os.path.isfile(f"{self.path(allocation)}/{LIMITS_FILE}")

    def all(self) -> list[AllocationId]:
        """All whole slots."""
        names = [entry.name for entry in self.root.iterdir() if is_slot_name(entry.name)]
        return sorted(found for name in names if self.exists(found := self.names.allocation_of(name)))

    def sweep(self) -> None:
        """Remove what crashes have left half made or half removed."""
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
    """Let a user list a directory and open what is in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        share_with(descriptor, uid, owner=READ_WRITE | SEARCH, user=READ | SEARCH)
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, *, mode: int, user: int | None, rights: int) -> None:
    """Written out, never sparse: what has no room must show here and not as SIGBUS in the tenant."""
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
