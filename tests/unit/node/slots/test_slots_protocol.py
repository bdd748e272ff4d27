"""Slots in memory: permissions of a tenant on its pages, and the state after a crash at any point."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.stand_ins import NothingListed

from calabash.adapters.clock import SystemClock
from calabash.adapters.store import open_store
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.allocations.table import Allocations
from calabash.node.metering.usage_tracker import UsageTracker
from calabash.node.slots import pages, tmpfs
from calabash.node.slots.content import SlotDevice, SlotSpec
from calabash.node.slots.files import FileSlots
from calabash.node.slots.names import LIMITS_FILE, USAGE_FILE
from calabash.node.slots.protocol import choose_slots
from calabash.node.slots.tmpfs import TmpfsSlots
from calabash_testing.clock import VirtualClock

CARD = DeviceUuid("GPU-1")
A = AllocationId("a1")
TENANT_UID, OTHER_UID = 65534, 65533


def _spec(name: AllocationId = A, *, tenant_uid: int | None = TENANT_UID) -> SlotSpec:
    device = SlotDevice(uuid=CARD, memory_limit_bytes=1 << 30)
    return SlotSpec(allocation=name, devices=(device,), tenant_uid=tenant_uid, leaseless=True)


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[TmpfsSlots]:
    if os.geteuid() != 0:
        pytest.skip("slots in memory are mounted by root")
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)  # tenants must reach the slots
    made = TmpfsSlots(tmp_path / "alloc")
    if not made.works():
        pytest.skip("this container may not mount")
    yield made
    for path in made.root.iterdir():
        tmpfs._clear(path)


def _as_user(uid: int, attack: Callable[[], object]) -> str:
    """Call a function as another user; return the name of the error, or the result as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            try:
                answer = str(attack())
            except OSError as error:
                answer = type(error).__name__ if type(error) is not OSError else os.strerror(error.errno or 0)
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    found = os.read(reading, 1000).decode()
    os.close(reading)
    os.waitpid(pid, 0)
    return found


def _usage(slots: TmpfsSlots) -> Path:
    return slots.path(A) / USAGE_FILE


def test_tenant_maps_usage_for_writing_and_limits_for_reading(slots: TmpfsSlots) -> None:
    slots.create(_spec())
    path = _usage(slots)

    def use() -> str:
        descriptor = os.open(path, os.O_RDWR)
        page = mmap.mmap(descriptor, path.stat().st_size)
        page[8192] = 1
        return str(len((path.parent / LIMITS_FILE).read_bytes()))

    assert _as_user(TENANT_UID, use) == "8192"
    assert slots.pages(A).usage.proc(0).state != 0


def test_usage_is_readable_by_its_tenant_only(slots: TmpfsSlots) -> None:
    slots.create(_spec())
    assert _as_user(OTHER_UID, lambda: os.open(_usage(slots), os.O_RDONLY)) == "PermissionError"


def test_tenant_can_take_no_lease_and_change_no_mode(slots: TmpfsSlots) -> None:
    slots.create(_spec())
    path = _usage(slots)

    def lease(path: Path, flags: int, kind: int) -> None:
        fcntl.fcntl(os.open(path, flags), fcntl.F_SETLEASE, kind)

    limits = path.parent / LIMITS_FILE
    assert _as_user(TENANT_UID, lambda: lease(path, os.O_RDWR, fcntl.F_WRLCK)) == "PermissionError"
    assert _as_user(TENANT_UID, lambda: lease(limits, os.O_RDONLY, fcntl.F_RDLCK)) == "PermissionError"
    assert _as_user(TENANT_UID, lambda: path.chmod(0o666)) == "PermissionError"
    assert _as_user(TENANT_UID, lambda: os.open(limits, os.O_RDWR)) == "PermissionError"
    assert _as_user(TENANT_UID, (path.parent / "more").touch) == "PermissionError"
    assert _as_user(TENANT_UID, path.unlink) == "PermissionError"


def test_usage_page_cannot_grow_in_memory(slots: TmpfsSlots) -> None:
    slots.create(_spec())
    path = _usage(slots)

    def grow() -> int:
        with path.open("ab") as file:
            return file.write(bytes(1 << 20))

    assert _as_user(TENANT_UID, grow) == "No space left on device"
    status = os.statvfs(path)
    assert status.f_blocks * status.f_frsize == path.stat().st_size + 8192


@pytest.mark.parametrize("size", [0, 100, 1 << 40])
def test_page_of_wrong_size_is_reported_and_read_without_fault(slots: TmpfsSlots, size: int) -> None:
    slots.create(_spec())
    usage = slots.pages(A).usage
    usage_tracker = UsageTracker(slots, VirtualClock())
    assert usage_tracker.tick([_record(A)]) == {}
    assert _as_user(TENANT_UID, lambda: os.truncate(_usage(slots), size)) == "None"
    spoilt = usage_tracker.tick([_record(A)])
    assert list(spoilt) == [A]
    assert f"has {size} bytes, not" in spoilt[A]
    assert usage.device(0).used_bytes == 0
    assert usage.take_kernel_ns_max(0) == 0


def test_hole_in_a_page_of_a_full_file_system_does_not_stop_the_pool(slots: TmpfsSlots) -> None:
    slots.create(_spec())
    path = _usage(slots)
    size = path.stat().st_size

    def attack() -> None:
        os.truncate(path, 0)
        os.truncate(path, 1 << 30)
        with path.open("r+b") as file:
            file.seek(1 << 29)
            with contextlib.suppress(OSError):
                file.write(bytes(2 * size))

    usage = slots.pages(A).usage
    _as_user(TENANT_UID, attack)
    assert usage.take_kernel_ns_max(0) == 0
    with pytest.raises(CalabashError):
        usage.require_intact()


def test_file_that_cannot_be_opened_is_reported_without_blocking(slots: TmpfsSlots) -> None:
    slots.create(_spec())
    path = _usage(slots)
    path.unlink()
    os.mkfifo(path)
    assert list(UsageTracker(slots, VirtualClock()).tick([_record(A)])) == [A]


def test_slots_outlive_their_pool_until_removed(slots: TmpfsSlots) -> None:
    slots.create(_spec())
    inode = _usage(slots).stat().st_ino
    again = TmpfsSlots(slots.root)
    again.sweep()
    assert again.all() == [A]
    again.create(_spec())
    assert _usage(slots).stat().st_ino == inode
    again.remove(A)
    again.remove(A)
    assert list(slots.root.iterdir()) == []


def test_plain_file_slot_of_an_earlier_pool_is_used_and_removed(slots: TmpfsSlots) -> None:
    FileSlots(slots.root).create(_spec())
    slots.sweep()
    assert slots.all() == [A]
    assert slots.pages(A).limits.allocation == A
    slots.remove(A)
    assert list(slots.root.iterdir()) == []


def test_file_modes_do_not_depend_on_the_umask(slots: TmpfsSlots) -> None:
    before = os.umask(0)
    try:
        slots.create(_spec())
        FileSlots(slots.root.parent / "files", mode=0o700)
    finally:
        os.umask(before)
    path = slots.path(A)
    modes = {p: p.stat().st_mode & 0o7777 for p in (slots.root, path, path / LIMITS_FILE)}
    # The bits of the group are the rights that the access list gives to the tenant.
    assert modes == {slots.root: 0o711, path: 0o750, path / LIMITS_FILE: 0o640}
    assert (slots.root.parent / "files").stat().st_mode & 0o7777 == 0o700
    os.umask(0o077)
    try:
        slots.create(_spec(AllocationId("b")))
    finally:
        os.umask(before)
    assert _as_user(TENANT_UID, lambda: os.open(slots.path(AllocationId("b")) / USAGE_FILE, os.O_RDWR)).isdigit()


def test_slots_are_plain_files_without_permission_to_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(tmpfs, "mount", refused)
    chosen = choose_slots(tmp_path / "alloc", membership="kernel")
    assert chosen.form == "files"
    assert list((tmp_path / "alloc").iterdir()) == []
    chosen.create(_spec())
    assert sorted(p.name for p in chosen.path(A).iterdir()) == [LIMITS_FILE, USAGE_FILE]


def test_slots_are_plain_files_with_lease_membership(tmp_path: Path) -> None:
    assert choose_slots(tmp_path / "alloc", membership="lease").form == "files"


# -- crashes -----------------------------------------------------------------------------------------------------------


def _record(name: AllocationId) -> AllocationRecord:
    part = Slice(device=CARD, memory_mib=1, core_percent=1)
    return AllocationRecord(
        id=name,
        state=AllocationState.GRANTED,
        request=GpuRequest(memory_mib=1, core_percent=1),
        placement=Placement(node=NodeName("n"), mode=ModeName("vgpu"), slices=(part,)),
        client_pid=os.getpid(),
        client_start_time=1,  # nobody: what is granted and not taken is revoked at once
    )


class _NoMembers:
    form = "kernel"

    def prepare(self, allocation: AllocationId) -> None: ...

    def changed_allocations(self) -> None:
        return None

    def populated(self, allocation: AllocationId) -> bool:
        return False

    def group(self, allocation: AllocationId) -> int:
        return 0

    def remove(self, allocation: AllocationId) -> bool:
        return True

    def adopt(self, records: Any) -> set[AllocationId]:
        return set()


def _allocations(slots: TmpfsSlots, url: str) -> Allocations:
    membership = cast("Any", _NoMembers())
    return Allocations(
        store=open_store(url), slots=slots, membership=membership, clock=SystemClock(), occupancy=NothingListed()
    )


def _die_at(step: int) -> None:
    """SIGKILL to this process before its n-th change of the outside world."""
    left = step

    def dying(function: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*arguments, **named)

        return counted

    module = cast("Any", tmpfs)
    for name in ("mount", "unmount", "_write", "share_with"):
        setattr(module, name, dying(getattr(module, name)))
    for name in ("mkdir", "rename", "rmdir", "chmod"):
        setattr(Path, name, dying(getattr(Path, name)))
    for name in ("grant", "start", "release"):
        kind = type(open_store("sqlite://"))
        setattr(kind, name, dying(getattr(kind, name)))


def test_pool_killed_before_any_step_of_grant_or_release_leaves_nothing(slots: TmpfsSlots, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/pool.db"
    open_store(url).close()
    left_behind = set()
    step = survived = 0
    while not survived:
        name = AllocationId(f"s{step}")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _die_at(step)
                held = _allocations(TmpfsSlots(slots.root), url)
                held.hold(_record(name))
                held.grant(_spec(name))
                held.sweep()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        survived = os.waitstatus_to_exitcode(status) != -signal.SIGKILL
        assert not survived or os.waitstatus_to_exitcode(status) == 0
        left_behind.add((len(list(slots.root.iterdir())), os.path.ismount(slots.path(name)), slots.exists(name)))
        held = _allocations(slots, url)
        held.recover()
        assert held.records() == []
        assert list(slots.root.iterdir()) == []
        step += 1
    assert step > 8
    assert {(1, False, False), (1, True, False), (1, True, True), (0, False, False)} <= left_behind


@pytest.mark.parametrize("form", ["files", "tmpfs"])
def test_pages_opened_while_their_slot_is_removed_are_not_kept(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    kept: FileSlots | TmpfsSlots = FileSlots(tmp_path) if form == "files" else request.getfixturevalue("slots")
    kept.create(_spec())
    remover = threading.Thread(target=kept.remove, args=(A,))
    open_usage = pages.UsagePage.of_slot

    def opened(path: Path) -> pages.UsagePage:
        found = open_usage(path)
        remover.start()
        while kept.exists(A):
            time.sleep(0.001)
        remover.join(0.05)  # it may be through, if nobody keeps it from that
        return found

    monkeypatch.setattr(pages.UsagePage, "of_slot", opened)
    assert kept.pages(A).limits.allocation == A
    remover.join()
    monkeypatch.setattr(pages.UsagePage, "of_slot", open_usage)
    with pytest.raises(CalabashError):
        kept.pages(A)
