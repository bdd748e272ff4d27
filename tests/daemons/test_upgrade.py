"""Upgrade of a pool while programs run on slices, and the refused downgrade.

The older side is a wheel: that of each released version (``tests.releases``), and one of this tree with an older version
number, whose minor version differs. ``CALABASH_UPGRADE_FROM`` names other wheels, separated by colons, to upgrade from instead.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.world import World, until
from tests.releases import RELEASES, release_wheel
from tools import wheel

import calabash
from calabash.adapters.store import open_store
from calabash.api import endpoints
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.model.versions import JOURNAL, SLOT_PAGES, minor_version
from calabash.node.slots.names import LIMITS_FILE

OLDER_VERSION = "0.0.9"
WHEELS = [name for name in os.environ.get("CALABASH_UPGRADE_FROM", "").split(":") if name] or ["tree", *RELEASES]
PROGRAMS = 20
MEMORY_MIB, CORES = 1024, 10
GAP_S = 0.001  # between two usage records of one allocation
EDGE_S = 2.0  # between a grant or an end, and the usage record that begins or ends there


class OlderProduct:
    """The product of a wheel and its dependencies in an environment of their own."""

    def __init__(self, directory: Path, archive: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
        (self.packages,) = directory.glob("lib/python*/site-packages")
        install = [wheel.uv(), "pip", "install", "-q", "-p", str(directory), str(archive)]
        subprocess.run(install, env={**os.environ, "UV_LINK_MODE": "copy"}, check=True)
        self.python = str(directory / "bin" / "python")
        self.version = subprocess.check_output(
            [self.python, "-c", "import calabash; print(calabash.__version__)"], text=True, cwd="/"
        ).strip()

    def command(self, *words: str) -> list[str]:
        return [self.python, "-P", "-m", "calabash.cli.main", *words]


def _renumbered(archive: Path, target: Path, version: str) -> Path:
    """Write a copy of a wheel in which the product has another version."""
    target.parent.mkdir()
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(target, "w") as copy:
        for item in source.infolist():
            content = source.read(item)
            if item.filename == "calabash/__init__.py":
                content, count = re.subn(rb'__version__ = "[^"]+"', f'__version__ = "{version}"'.encode(), content)
                assert count == 1
            copy.writestr(item, content)
    return target


@pytest.fixture(scope="module", params=WHEELS, ids=lambda name: Path(name).name)
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OlderProduct:
    """Install the older version of the product."""
    directory = tmp_path_factory.mktemp("older")
    directory.chmod(0o755)
    if request.param == "tree":
        built = wheel.build(directory)
        archive = _renumbered(built, directory / "renumbered" / built.name, OLDER_VERSION)
    elif request.param in RELEASES:
        try:
            archive = release_wheel(request.param)
        except LookupError as error:
            pytest.skip(str(error))
    else:
        archive = Path(request.param)
    return OlderProduct(directory / "venv", archive)


class UpgradeWorld(World):
    """Pool that is started from this tree or, if ``older`` is set, from an older version of the product."""

    older: OlderProduct | None = None

    def command(self) -> list[str]:
        words = super().command()
        return words if self.older is None else [self.older.python, "-P", *words[1:]]

    def stop(self) -> None:
        """Stop the pool as a service manager does."""
        self.kill(signal.SIGTERM)

    def refused_start(self) -> str:
        """Start the pool, which must end by itself; return what it printed."""
        done = subprocess.run(
            self.command(), env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 1, done
        return done.stdout + done.stderr


@pytest.fixture
def world(tmp_path: Path) -> Iterator[UpgradeWorld]:
    made = UpgradeWorld(tmp_path / "home", "4xA100-40GB")
    yield made
    made.close()


class OlderProgram:
    """Program that the older ``calabash run`` started on a slice."""

    def __init__(self, older: OlderProduct, world: World, program: str, said: Path) -> None:
        words = older.command("run", "--memory", f"{MEMORY_MIB}MiB", "--cores", str(CORES), "--", program)
        self.said = said
        with said.open("wb") as output:
            self.process = subprocess.Popen(
                words,
                env={**world.environment, "CALABASH_HOME": str(world.home)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.expected: list[str] = ["ready"]

    def lines(self) -> list[str]:
        return self.said.read_text().splitlines()

    def answered(self) -> bool:
        assert self.process.poll() is None, self.lines()
        return len(self.lines()) >= len(self.expected)

    def take(self, mib: int, answer: str) -> None:
        """Let the program take memory; ``answer`` is expected."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{mib}\n".encode())
        self.process.stdin.flush()
        self.expected.append(f"{answer} {mib}")

    def finish(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=60)

    def maps(self) -> str:
        return Path(f"/proc/{self.process.pid}/maps").read_text()


def _all_answer(programs: Sequence[OlderProgram], mib: int, answer: str) -> None:
    for program in programs:
        program.take(mib, answer)
    until(lambda: all(program.answered() for program in programs), what=f"all to answer: {answer} {mib}")
    for program in programs:
        assert program.lines() == program.expected, "the program noticed something else"


def _ids(allocations: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Return the allocations by the process in them."""
    return {pid: one["id"] for one in allocations for pid in one["pids"] if one["state"] == "running"}


def _dump(journal: Path) -> list[str]:
    with closing(sqlite3.connect(journal)) as connection:
        return list(connection.iterdump())


def _require_whole_accounts(journal: Path, ids: Sequence[str]) -> None:
    """Check that the usage records of each allocation follow each other from its grant to its end."""
    store = open_store(f"sqlite:///{journal}")
    try:
        records, ended = store.usage(), {one.id: one for one in store.allocations(ended=True)}
    finally:
        store.close()
    for name in ids:
        found = sorted((one for one in records if one.allocation == name), key=lambda one: one.from_s)
        assert found, name
        for before, after in pairwise(found):
            assert abs(after.from_s - before.to_s) < GAP_S, (name, found)
        length_s = found[-1].to_s - found[0].from_s
        granted = ended[AllocationId(name)]
        assert abs(found[0].from_s - granted.granted_at) < EDGE_S
        assert abs(found[-1].to_s - granted.ended_at) < EDGE_S
        assert sum(one.allocated_gpu_s for one in found) == pytest.approx(length_s * CORES / 100)
        assert sum(one.memory_mib_s for one in found) == pytest.approx(length_s * MEMORY_MIB)


def test_pool_that_is_stopped_without_its_programs_is_followed_by_one_that_takes_them_over(world: UpgradeWorld) -> None:
    """A program that ends meanwhile is accounted up to its end, and no usage record is missing."""
    world.up()
    amounts: dict[str, Any] = {"memory_mib": MEMORY_MIB, "cores": CORES}
    (kept, first), (short, second) = world.running("cat", **amounts), world.running("cat", **amounts)
    refused = _down(world)
    assert (refused.returncode, "calabash down --keep-programs" in refused.stderr) == (1, True), refused.stderr
    assert _down(world, "--keep-programs", "--force").returncode == 2
    assert kept.alive()
    assert short.alive()
    done = _down(world, "--keep-programs")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "pool is down; 2 allocations are kept until the next `calabash up`\n",
        "",
    )
    assert world.daemon is not None
    world.daemon.wait(timeout=60)
    assert kept.alive()
    asked_at = time.time()
    assert short.finish() == 0
    started_at = time.time()
    world.up()
    until(lambda: [one["id"] for one in world.client.get("/v1/allocations")["items"]] == [first["id"]])
    assert world.client.get("/v1/allocations")["items"][0]["pids"] == first["pids"]
    assert kept.finish() == 0
    until(lambda: not world.client.get("/v1/allocations")["items"], what="the release of the kept allocation")
    world.stop()
    _require_whole_accounts(world.home / "pool.db", [first["id"]])
    store = open_store(f"sqlite:///{world.home / 'pool.db'}")
    try:
        accounted_to = max(one.to_s for one in store.usage() if one.allocation == second["id"])
    finally:
        store.close()
    assert asked_at < accounted_to < started_at + EDGE_S


def _down(world: UpgradeWorld, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "calabash.cli.main", "down", *options]
    environment = {**world.environment, "CALABASH_HOME": str(world.home)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_pool_is_upgraded_under_running_programs_and_a_downgrade_with_a_newer_journal_is_refused(
    world: UpgradeWorld, older: OlderProduct, grow: str, tmp_path: Path
) -> None:
    world.older = older
    assert world.up()["version"] == older.version
    if minor_version(older.version) != minor_version(calabash.__version__):
        with pytest.raises(CalabashError, match=f"the pool is calabash {older.version}") as refused:
            world.client.send(endpoints.LIST_ALLOCATIONS)
        assert refused.value.reason is Reason.VERSION_MISMATCH
    programs = [OlderProgram(older, world, grow, tmp_path / f"said{number}") for number in range(PROGRAMS)]
    try:
        until(lambda: all(program.answered() for program in programs), what="all programs to start")
        _all_answer(programs, 100, "taken")
        assert all(str(older.packages) in program.maps() for program in programs), "they have the older library"

        world.stop()
        _all_answer(programs, 10, "taken")
        world.older = None
        assert world.up()["version"] == calabash.__version__
        held = _ids(world.allocations())
        assert sorted(held) == sorted(program.process.pid for program in programs)
        _all_answer(programs, 20, "taken")
        _all_answer(programs, MEMORY_MIB, "refused")
        assert [program.finish() for program in programs] == [0] * PROGRAMS
        until(lambda: not world.allocations(), what="all slices to be free")
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()
    world.stop()
    journal = world.home / "pool.db"
    _require_whole_accounts(journal, list(held.values()))

    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(JOURNAL.newest + 1),))
    before = _dump(journal)
    world.older = older
    said = world.refused_start()
    assert "error [store_newer]" in said
    assert f"schema {JOURNAL.newest + 1}" in said
    assert "hint: use the newer calabash that wrote it" in said
    assert _dump(journal) == before


def test_pool_refuses_a_slot_of_newer_pages_and_changes_nothing(world: UpgradeWorld, grow: str) -> None:
    world.up()
    program, held = world.running(grow, memory_mib=MEMORY_MIB, cores=CORES)
    until(lambda: program.says("ready"), what="the program to start")
    limits = world.slot_path(held["id"]) / LIMITS_FILE
    world.stop()

    def set_version(version: int) -> None:
        with limits.open("r+b") as page:
            page.seek(8)  # behind the magic number
            page.write(struct.pack("<I", version))

    (written,) = struct.unpack("<I", limits.read_bytes()[8:12])
    set_version(SLOT_PAGES.newest + 1)
    before = _dump(world.home / "pool.db")
    said = world.refused_start()
    assert "error [version_mismatch]" in said
    assert f"page version {SLOT_PAGES.newest + 1}; calabash {calabash.__version__} supports page version 1 to" in said
    assert "hint: start the calabash that granted the allocation" in said
    assert program.alive()
    assert _dump(world.home / "pool.db") == before
    set_version(written)
    world.up()
    assert [one["id"] for one in world.allocations()] == [held["id"]]
    os.write(program.stdin, b"100\n")
    until(lambda: program.says("taken 100"), what="the program to go on")
