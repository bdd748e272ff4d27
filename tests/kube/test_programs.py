"""Tests of the cache of built Kubernetes programs: names of its directories, calls of Go, and concurrent builders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kube import programs

ROOT = Path(__file__).resolve().parents[2]
GO = """#!/bin/sh
# Says its version; "builds" by copying its own name to the output, slowly enough for two to meet.
if [ "$1" = env ]; then echo go9.9; exit; fi
echo "$@" >> "$GO_CALLS"
sleep 0.05
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""
RUNC = """#!/bin/sh
echo '{"linux": {"mountExtensions": {"idmap": {"enabled": true}}}}'
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up an empty cache and, in ``PATH``, scripts in place of Go and runc; return the file with the calls of Go."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in {"go": GO, "runc": RUNC}.items():
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("CALABASH_KUBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_what_is_built_names_the_directory(tmp_path: Path) -> None:
    copy = tmp_path / "cluster"
    shutil.copytree(programs.SOURCES, copy)
    assert programs.key(copy) == programs.key()
    for changed in ("go.mod", "go.sum", "cmd/kube/main.go"):
        before = programs.key(copy)
        with (copy / changed).open("a") as file:
            file.write("\n")
        assert programs.key(copy) != before


def test_how_it_is_built_names_the_directory(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = programs.directory()
    monkeypatch.setattr(programs, "BUILT", programs.BUILT[1:])
    assert programs.directory() != before


def test_nothing_is_found_before_it_is_built(machine: Path) -> None:
    with pytest.raises(programs.MissingError, match="tools/bootstrap --tests"):
        programs.found()


def test_what_is_there_is_not_built_again(machine: Path) -> None:
    where = programs.build()
    first = machine.read_text().splitlines()
    assert len(first) == len(programs.BUILT)
    assert programs.build() == programs.found() == where
    assert machine.read_text().splitlines() == first
    assert (where / "kubelet").read_text() == "built\n"


def test_interrupted_build_continues_where_it_stopped(machine: Path) -> None:
    where = programs.build()
    (where / "ctr").unlink()
    programs.build()
    assert [
        line.split()[-1].rsplit("/", 1)[-1] for line in machine.read_text().splitlines()[len(programs.BUILT) :]
    ] == ["ctr"]


def test_failed_build_leaves_nothing_and_reports_the_error(machine: Path, tmp_path: Path) -> None:
    script = tmp_path / "tools" / "go"
    script.write_text(GO.replace("sleep 0.05", "echo no such package >&2; exit 3"))
    with pytest.raises(programs.MissingError, match="ended with 3:\nno such package"):
        programs.build()
    assert not [path for path in programs.directory().iterdir() if path.name != "lock"]


def test_two_builders_build_once(machine: Path) -> None:
    command = [sys.executable, "-m", "tests.kube.programs"]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert len(machine.read_text().splitlines()) == len(programs.BUILT)


def test_without_go_whole_programs_from_the_same_sources_serve(machine: Path, tmp_path: Path) -> None:
    where = programs.build()
    (tmp_path / "tools" / "go").unlink()
    assert programs.found() == where
    (where / "ctr").unlink()
    with pytest.raises(programs.MissingError, match="Go is not installed"):
        programs.found()


def test_what_nobody_has_used_for_a_month_is_forgotten(machine: Path) -> None:
    for name, days in (("old", 31), ("used", 29)):
        other = programs.cache() / name
        other.mkdir(parents=True)
        (other / "kube").touch()
        then = time.time() - days * 86400
        os.utime(other, (then, then))
    where = programs.build()
    assert sorted(programs.cache().iterdir()) == sorted([where, programs.cache() / "used"])


def test_runc_is_built_where_it_is_not_installed(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools" / "runc").unlink()
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "runc" else f"/usr/bin/{name}")
    where = programs.build()
    assert programs.runc(where) == where / "runc"
    assert (where / "runc").exists()


@pytest.mark.parametrize("headers", [True, False])
def test_runc_is_built_beside_one_that_cannot_give_pods_users_of_their_own_where_it_can_be(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: bool
) -> None:
    (tmp_path / "tools" / "runc").write_text("#!/bin/sh\n")
    monkeypatch.setattr(programs, "_can_build_runc", lambda: headers)
    where = programs.build()
    assert (where / "runc").exists() is headers
    assert programs.runc(where) == tmp_path / "tools" / "runc"
