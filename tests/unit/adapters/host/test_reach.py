"""The component of a path that keeps other users from a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calabash.adapters.host.reach import barrier_to_others


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create ``a/b/file`` and make the directories above it, as far as they belong to this user, searchable by others."""
    for part in (tmp_path, *tmp_path.parents):
        if part.stat().st_uid == os.geteuid() and not part.stat().st_mode & 1:
            part.chmod(part.stat().st_mode | 0o011)
    (tmp_path / "a/b").mkdir(parents=True)
    for path in (tmp_path / "a", tmp_path / "a/b"):
        path.chmod(0o711)
    (tmp_path / "a/b/file").write_text("")
    (tmp_path / "a/b/file").chmod(0o604)
    return tmp_path


def test_modes_that_let_others_in_are_no_barrier(tree: Path) -> None:
    assert barrier_to_others(tree / "a/b/file") is None
    assert barrier_to_others(tree / "a/b") is None


def test_the_first_directory_that_shuts_others_out_is_named_with_the_command(tree: Path) -> None:
    (tree / "a").chmod(0o750)
    (tree / "a/b").chmod(0o700)
    barrier = barrier_to_others(tree / "a/b/file")
    assert barrier is not None
    assert str(barrier) == f"{tree}/a has mode 0750"
    assert barrier.command == f"chmod o+x {tree}/a"


@pytest.mark.parametrize(
    ("mode", "execute", "command"), [(0o640, False, "o+r"), (0o604, True, "o+rx"), (0o701, True, "o+rx")]
)
def test_a_file_that_others_cannot_use_is_named(tree: Path, mode: int, execute: bool, command: str) -> None:
    (tree / "a/b/file").chmod(mode)
    barrier = barrier_to_others(tree / "a/b/file", execute=execute)
    assert barrier is not None
    assert barrier.command == f"chmod {command} {tree}/a/b/file"


def test_links_lead_through_their_own_directories(tree: Path) -> None:
    (tree / "closed").mkdir(mode=0o700)
    (tree / "closed/next").symlink_to("../a/b/file")
    (tree / "link").symlink_to("closed/next")
    barrier = barrier_to_others(tree / "link")
    assert barrier is not None
    assert barrier.path == tree / "closed"
    (tree / "closed").chmod(0o711)
    assert barrier_to_others(tree / "link") is None
    with pytest.raises(FileNotFoundError):
        barrier_to_others(tree / "none")
