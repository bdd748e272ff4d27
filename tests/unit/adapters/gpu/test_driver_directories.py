"""The directories of the driver's libraries are found where the dynamic loader finds them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from calabash.adapters.gpu import library
from calabash.adapters.gpu.library import driver_directories
from calabash.adapters.host.children import run_program


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    driver_directories.cache_clear()
    yield
    driver_directories.cache_clear()


def _loader_cache(monkeypatch: pytest.MonkeyPatch, directory: Path, lines: str, code: int = 0) -> None:
    program = directory / "ldconfig"
    program.write_text(f"#!/bin/sh\ncat <<'LINES'\n{lines}LINES\nexit {code}\n")
    program.chmod(0o755)

    def run(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        assert command[0].endswith("/ldconfig")
        return run_program([str(program), *command[1:]], timeout_s=timeout_s)

    monkeypatch.setattr(library, "run_program", run)


def test_directories_of_links_and_of_their_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, links = tmp_path / "nvidia" / "lib64", tmp_path / "lib"
    driver.mkdir(parents=True)
    links.mkdir()
    (driver / "libcuda.so.580.159.04").touch()
    (links / "libcuda.so.1").symlink_to(driver / "libcuda.so.580.159.04")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    _loader_cache(
        monkeypatch,
        tmp_path,
        "3 libs found in cache `/etc/ld.so.cache'\n"
        f"\tlibcudart.so.13 (libc6,x86-64) => {tmp_path}/cuda/libcudart.so.13\n"
        f"\tlibcuda.so.1 (libc6,x86-64) => {links}/libcuda.so.1\n"
        f"\tlibnvidia-ml.so.1 (libc6,x86-64) => {tmp_path}/missing/libnvidia-ml.so.1\n",
    )
    assert driver_directories() == (links, driver)


def test_ld_library_path_comes_first_and_relative_entries_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, cached = tmp_path / "own", tmp_path / "cached"
    for directory in (own, cached):
        directory.mkdir()
        (directory / "libnvidia-ml.so.1").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"cached:{own}:")
    _loader_cache(monkeypatch, tmp_path, f"\tlibnvidia-ml.so.1 (libc6,x86-64) => {cached}/libnvidia-ml.so.1\n")
    assert driver_directories() == (own, cached)


def test_without_a_driver_or_a_loader_cache_there_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    _loader_cache(monkeypatch, tmp_path, "", code=1)
    assert driver_directories() == ()
