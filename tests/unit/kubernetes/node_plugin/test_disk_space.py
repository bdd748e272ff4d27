"""Tests of a full disk: the agent grants nothing and reports the cause."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from calabash.kubernetes.node_plugin.disk_space import FREE_FILES_MIN, FREE_MIB_AGAIN, FREE_MIB_MIN, DiskRoom
from calabash.model.errors import Reason

BLOCK = 4096
MIB = (1 << 20) // BLOCK


def disk(*, free_mib: float, files: int = 1000, free_files: int = 1000) -> Any:
    blocks = int(free_mib * MIB)
    return os.statvfs_result((BLOCK, BLOCK, 10**6, blocks + 1000, blocks, files, free_files, free_files, 0, 255))


def test_directory_has_room() -> None:
    assert DiskRoom(Path("/")).full() is None


def test_full_disk_is_told_until_there_is_some_more_room_than_the_least() -> None:
    now = [disk(free_mib=FREE_MIB_MIN)]
    room = DiskRoom(Path("/home"), lambda _: now[0])
    assert room.full() is None
    now[0] = disk(free_mib=FREE_MIB_MIN - 0.1)
    error = room.full()
    assert error is not None
    assert error.reason is Reason.DISK_FULL
    assert "/home" in error.message
    assert error.hint
    now[0] = disk(free_mib=FREE_MIB_AGAIN - 0.1)
    assert room.full() is not None
    now[0] = disk(free_mib=FREE_MIB_AGAIN)
    assert room.full() is None
    now[0] = disk(free_mib=FREE_MIB_MIN)
    assert room.full() is None


@pytest.mark.parametrize(("files", "free", "full"), [(1000, FREE_FILES_MIN - 1, True), (0, 0, False)])
def test_disk_without_room_for_files_is_full_unless_its_file_system_counts_none(
    files: int, free: int, full: bool
) -> None:
    room = DiskRoom(Path("/home"), lambda _: disk(free_mib=100, files=files, free_files=free))
    assert (room.full() is not None) is full


def test_directory_that_cannot_be_read_is_told() -> None:
    error = DiskRoom(Path("/proc/self/nothing")).full()
    assert error is not None
    assert error.reason is Reason.BAD_FILE
