"""Slots in memory: each is a tmpfs of its own, just as large as its pages and owned by root.

A tenant may write into ``usage`` and can do nothing else to it: it is not the owner, so it can neither change the mode
nor take a lease, and there is no room for it to grow. The mount outlives the pool, so programs of a slice start new
processes while no pool runs. ``limits`` appears last, so a slot that has it is whole; whatever else a crash leaves is
unmounted and removed at the next start.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from calabash.agent.slot_content import SlotDevice, SlotSpec, limits_bytes, usage_bytes
from calabash.agent.slot_names import LIMITS_FILE, USAGE_FILE, is_slot_name
from calabash.agent.slot_pages import SlotPages
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.seams.host.acl import share_with
from calabash.seams.host.failures import failure
from calabash.seams.host.mounts import mount, unmount

_INODES = 4  # the directory, two pages, and one to spare
_STACKED_MAX = 16
_PROBE = AllocationId("probe-of-the-file-system")


class TmpfsSlots(SlotPages):
    """The slots of a pool of root, below a directory that nobody else writes to."""

    form = "tmpfs"

    def works(self) -> bool:
        """Whether a slot can be made here for another user."""
        spec = SlotSpec(allocation=_PROBE, devices=(SlotDevice(uuid=DeviceUuid("none")),), tenant_uid=1)
        try:
            self.create(spec)
        except CalabashError:
            return False
        finally:
            self.remove(_PROBE)
        return True

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
            path.mkdir(mode=0o755)
            size = len(usage) + len(limits)
            mount("calabash", path, "tmpfs", f"nosuid,nodev,noexec,size={size},nr_inodes={_INODES},mode=755")
            _write(
                path / USAGE_FILE,
                usage,
                mode=0o600 if spec.tenant_uid is not None else 0o666,
                tenant_uid=spec.tenant_uid,
            )
            coming = path / ("." + LIMITS_FILE)
            _write(coming, limits, mode=0o644, tenant_uid=None)
            coming.rename(path / LIMITS_FILE)
        except OSError as error:
            _clear(path)
            hint = "the pool must be able to mount below its own directory"
            raise failure(error, f"cannot make the slot {path}", hint=hint, full_hint="free some memory") from error
        except BaseException:
            _clear(path)
            raise

    def remove(self, allocation: AllocationId) -> None:
        """Take the slot away; nothing when there is none. Who still maps a page keeps that memory until it ends."""
        _clear(self.path(allocation))
        self.drop(allocation)

    def exists(self, allocation: AllocationId) -> bool:
        """Whether there is a whole slot of that name."""
        return (self.path(allocation) / LIMITS_FILE).is_file()

    def all(self) -> list[AllocationId]:
        """All whole slots."""
        names = [AllocationId(entry.name) for entry in self.root.iterdir() if is_slot_name(entry.name)]
        return sorted(name for name in names if self.exists(name))

    def sweep(self) -> None:
        """Remove what crashes have left half made or half removed."""
        whole = set(self.all())
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


def _write(path: Path, content: bytes, *, mode: int, tenant_uid: int | None) -> None:
    """Written out, never sparse: what has no room must show here and not as SIGBUS in the tenant."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode)
        if tenant_uid:
            share_with(descriptor, tenant_uid)
    finally:
        os.close(descriptor)
