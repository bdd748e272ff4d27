"""Bounded copies: limits on bytes, secrets by name, and files that are not regular."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.evidence_files import FILE_BYTES_MAX, FileCopier, may_be_secret, size_of


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def _copied(target: Path) -> dict[str, bytes]:
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def test_logs_journals_and_settings_of_a_directory_are_copied(home: Path, tmp_path: Path) -> None:
    kept = ("pool.log", "pool.log.1", "pool.db", "pool.db-wal", "pool.toml", "state.json", "events.jsonl", "node.state")
    (home / "deep" / "er").mkdir(parents=True)
    for name in (*kept, "core", "image.tar", "deep/er/ovn.log"):
        (home / name).write_text(name)
    copier = FileCopier(tmp_path / "copy")
    copier.copy("world", home)
    assert _copied(tmp_path / "copy") == {f"world/home/{name}": name.encode() for name in (*kept, "deep/er/ovn.log")}


def test_single_file_is_copied_whatever_its_suffix_and_once_under_two_paths(home: Path, tmp_path: Path) -> None:
    (home / "log").write_text("said")
    (home / "same.log").hardlink_to(home / "log")
    copier = FileCopier(tmp_path / "copy")
    copier.copy("server", home / "log")
    copier.copy("again", home)
    copier.copy("absent", home / "nothing")
    assert _copied(tmp_path / "copy") == {"server/log": b"said"}


def test_large_file_keeps_its_end(home: Path, tmp_path: Path) -> None:
    with (home / "pool.log").open("wb") as file:
        file.write(b"-" * (2 * FILE_BYTES_MAX) + b"the last line\n")
    copier = FileCopier(tmp_path / "copy")
    copier.copy("world", home)
    content = (tmp_path / "copy/world/home/pool.log").read_bytes()
    assert len(content) == FILE_BYTES_MAX
    assert content.endswith(b"-the last line\n")
    assert copier.listing == [
        f"world/home/pool.log: {2 * FILE_BYTES_MAX + 14} bytes, the last {FILE_BYTES_MAX} copied",
    ]


def test_large_file_of_few_data_is_copied_with_its_holes(home: Path, tmp_path: Path) -> None:
    state, copied = home / "node.state", tmp_path / "copy/world/home/node.state"
    with state.open("wb") as file:
        for offset in (FILE_BYTES_MAX, 8 * FILE_BYTES_MAX):
            file.seek(offset)
            file.write(b"data")
        file.truncate(20 * FILE_BYTES_MAX)
    copier = FileCopier(tmp_path / "copy")
    copier.copy("world", home)
    assert copied.read_bytes() == state.read_bytes()
    assert copied.stat().st_blocks * 512 < FILE_BYTES_MAX
    assert copier.listing == [f"world/home/node.state: {20 * FILE_BYTES_MAX} bytes"]


def test_copy_stays_within_the_limit_of_a_test(home: Path, tmp_path: Path) -> None:
    for number in range(5):
        (home / f"{number}.log").write_bytes(bytes(100))
    copier = FileCopier(tmp_path / "copy", bytes_left=350)
    copier.copy("world", home)
    assert size_of(tmp_path / "copy") == 300
    assert [line.partition(": ")[0] for line in copier.listing if "limit" in line] == [
        "world/home/3.log",
        "world/home/4.log",
    ]


def test_secrets_are_named_and_not_copied(home: Path, tmp_path: Path) -> None:
    (home / "secrets").mkdir()
    for name in ("admin.token", "server.key", "ca.pem", "api-token.json", "admin.kubeconfig", "secrets/plain.txt"):
        (home / name).write_text("hidden")
    copier = FileCopier(tmp_path / "copy")
    copier.copy("world", home)
    copier.copy("world", home / "admin.token")
    assert not (tmp_path / "copy").exists()
    named = {line.partition(": ")[0].removeprefix("world/home/") for line in copier.listing}
    assert named >= {"admin.token", "server.key", "ca.pem", "api-token.json", "admin.kubeconfig", "secrets"}


@pytest.mark.parametrize(("name", "secret"), [("DATABASE_PASSWORD", True), ("id.PEM", True), ("pool.toml", False)])
def test_name_of_a_secret_is_recognized(name: str, secret: bool) -> None:
    assert may_be_secret(name) is secret


def test_links_sockets_and_fifos_are_neither_followed_nor_opened(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "private.log").write_text("private")
    (home / "file.log").symlink_to(outside / "private.log")
    (home / "directory.log").symlink_to(outside)
    os.mkfifo(home / "pipe.log")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "socket.log"))
        copier = FileCopier(tmp_path / "copy")
        for source in (home, home / "file.log", home / "directory.log", home / "pipe.log"):
            copier.copy("world", source)
    assert not (tmp_path / "copy").exists()
    assert copier.listing == []


def test_name_that_is_not_printable_is_escaped_in_the_listing(home: Path, tmp_path: Path) -> None:
    (home / "a\nb\udcff.log").write_text("x")
    copier = FileCopier(tmp_path / "copy")
    copier.copy("world", home)
    assert copier.listing == ["'world/home/a\\nb\\udcff.log': 1 bytes"]
