"""Files of code images of workers: one for each tenant, private, and of bounded size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calabash.node.modes.brokered.images import ImageFiles


def _write(files: ImageFiles, uid: int, tenant: str, text: bytes) -> int:
    """Return the inode of the file."""
    found = files.open(uid=uid, tenant=tenant)
    assert found is not None
    os.pwrite(found.descriptor, text, 0)
    inode = os.fstat(found.descriptor).st_ino
    found.close()
    return inode


def _read(files: ImageFiles, uid: int, tenant: str) -> bytes:
    found = files.open(uid=uid, tenant=tenant)
    assert found is not None
    text = os.pread(found.descriptor, 1 << 20, 0)
    found.close()
    return text


def test_image_file_is_reused_by_the_same_tenant_only(tmp_path: Path) -> None:
    directory = tmp_path / "images"
    _write(ImageFiles(directory), 7, "vision", b"code")
    again = ImageFiles(directory)
    assert _read(again, 7, "vision") == b"code"
    assert _read(again, 7, "speech") == b""
    assert _read(again, 8, "vision") == b""
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


@pytest.mark.parametrize("tenant", ["../../etc/passwd", "a/b", "\0", "x" * 5000])
def test_tenant_name_with_a_path_stays_in_the_directory(tmp_path: Path, tenant: str) -> None:
    files = ImageFiles(tmp_path / "images")
    _write(files, 7, tenant, b"code")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    assert len(list((tmp_path / "images").iterdir())) == 1


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_anything_but_a_regular_file_of_the_pool_is_replaced(tmp_path: Path, kind: str) -> None:
    files = ImageFiles(tmp_path / "images")
    _write(files, 7, "vision", b"code")
    (path,) = (tmp_path / "images").iterdir()
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    path.unlink()
    if kind == "link":
        path.symlink_to(other)
    elif kind == "hard link":
        path.hardlink_to(other)
    else:
        os.mkfifo(path)
    _write(files, 7, "vision", b"code")
    assert other.read_bytes() == b"of somebody else"
    assert _read(files, 7, "vision") == b"code"


def test_image_file_that_is_too_long_is_emptied(tmp_path: Path) -> None:
    files = ImageFiles(tmp_path / "images", each_bytes_max=100)
    _write(files, 7, "vision", b"x" * 101)
    _write(files, 7, "speech", b"x" * 100)
    files.bound()
    assert _read(files, 7, "vision") == b""
    assert len(_read(files, 7, "speech")) == 100


def test_least_recently_used_image_file_is_removed_first(tmp_path: Path) -> None:
    files = ImageFiles(tmp_path / "images", all_bytes_max=200)
    for number, tenant in enumerate(("oldest", "older", "young")):
        inode = _write(files, 7, tenant, tenant.encode() * 15)
        (path,) = [p for p in (tmp_path / "images").iterdir() if p.stat().st_ino == inode]
        os.utime(path, (number, number))
    files.bound()
    assert _read(files, 7, "oldest") == b""
    assert _read(files, 7, "young") == b"young" * 15


def test_image_files_are_not_used_if_none_can_be_created(tmp_path: Path) -> None:
    (tmp_path / "images").write_text("in the way")
    assert ImageFiles(tmp_path / "images").open(uid=7, tenant="vision") is None
