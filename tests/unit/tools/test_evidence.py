"""Evidence of failed tests: runs of pytest on a generated project, with and without workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.evidence import KEEP, TESTS_MAX, RunDirectory, slug_of
from tests.evidence_sources import sources_of

ROOT = Path(__file__).resolve().parents[3]

_CONFTEST = '''
import shutil
import pytest
from tests.evidence_sources import rescue

class Daemon:
    """A daemon with a home directory, which is removed when the daemon is closed."""

    def __init__(self, home):
        self.home = home
        home.mkdir()
        (home / "pool.log").write_text("the log of " + home.name)
        (home / "pool.db-wal").write_text("journal")
        (home / "admin.token").write_text("do not copy")

    def evidence(self):
        return [self.home]

    def close(self):
        shutil.rmtree(self.home)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        rescue(self, error)
        self.close()

class Site:
    def __init__(self, daemon):
        self.daemon = daemon

@pytest.fixture
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")

@pytest.fixture
def daemon(place):
    made = Daemon(place / "home")
    yield made
    made.close()

@pytest.fixture
def site(daemon):
    return Site(daemon)

@pytest.fixture
def make_daemon(place):
    made = []
    def make():
        made.append(Daemon(place / f"made{len(made)}"))
        return made[-1]
    yield make
    for one in made:
        one.close()

@pytest.fixture
def open_daemon(place):
    return lambda: Daemon(place / "opened")

@pytest.fixture
def broken(daemon):
    raise RuntimeError("the fixture is broken")

@pytest.fixture
def left_over(daemon):
    yield
    raise RuntimeError("something is left over")
'''

_TESTS = """
import os, signal, threading, time
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

EXAMPLES = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))

def test_passes(daemon): pass
def test_skips(daemon): pytest.skip("not here")
@pytest.mark.xfail
def test_is_expected_to_fail(daemon): assert False

def test_fails(daemon, tmp_path):
    print("printed by the test")
    (tmp_path / "notes.txt").write_text("of the test")
    os.mkfifo(tmp_path / "pipe.log")
    assert 1 == 2
@pytest.mark.parametrize("n", ["a/b", "a-b"])
def test_fails_with(n): assert False
def test_fails_with_a_site(site): assert False
def test_fails_with_a_factory(make_daemon):
    make_daemon(), make_daemon()
    assert False
def test_fails_in_set_up(broken): pass
def test_fails_in_tear_down(left_over): pass
def test_fails_twice(left_over): assert False
def test_fails_inside_with(open_daemon):
    with open_daemon(): assert False
def test_passes_after_an_error(open_daemon):
    with pytest.raises(ValueError), open_daemon(): raise ValueError
@settings(EXAMPLES, derandomize=True)
@given(st.integers())
def test_fails_by_example(n): assert n < 1000
@EXAMPLES
@given(st.integers())
def test_fails_by_random_example(n): assert n < 1000
@pytest.mark.timeout(0.5, func_only=True)
def test_hangs(daemon): threading.Event().wait()
"""

_ENDING = """
import os, threading
import pytest

def test_crashes(daemon, tmp_path):
    (tmp_path / "notes.txt").write_text("before the crash")
    os._exit(9)
"""

_HANGING = """
import threading
import pytest

@pytest.mark.timeout(0.5, method="thread", func_only=True)
def test_hangs_in_a_thread(daemon):
    print("printed before the end")
    threading.Event().wait()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run of pytest in a project."""

    project: Path
    lines: list[str]

    @property
    def failed(self) -> Path:
        return self.project / "build" / "failed"

    def kept(self) -> dict[str, Path]:
        """Return the directory of each test that the last lines of the output name."""
        found = [re.fullmatch(r"evidence: (build/failed/\S+)  (\S+)", line) for line in self.lines]
        return {match[2].rpartition("::")[2]: self.project / match[1] for match in found if match}

    def report(self, test: str) -> str:
        return (self.kept()[test] / "report.txt").read_text()

    def files(self, test: str) -> dict[str, str]:
        """Return the copies of a test by path, with the number of the temporary directory left out."""
        base = self.kept()[test]
        found = {str(p.relative_to(base)): p.read_text() for p in base.rglob("*") if p.is_file()}
        return {path: text for path, text in found.items() if path != "report.txt"}


def run(
    project: Path, files: Mapping[str, str], environment: Mapping[str, str] | None = None, *, workers: int = 0
) -> Run:
    """Write the files of a project and run its tests."""
    project.mkdir(exist_ok=True)
    for name, text in {"pyproject.toml": "[tool.pytest.ini_options]\n", "conftest.py": _CONFTEST, **files}.items():
        (project / name).write_text(text)
    words = ["-p", "tests.evidence", "-p", "no:cacheprovider", "-p", "no:schemathesis", f"-n{workers}", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"--basetemp={project / 'temporary'}", *files],
        cwd=project,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    return Run(project=project, lines=done.stdout.splitlines())


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "workers"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a project with all kinds of failures; with workers also those that end a worker."""
    files = {"test_kinds.py": _TESTS}
    if request.param:
        files |= {"test_ending.py": _ENDING, "test_hanging.py": _HANGING}
    secrets = {
        "CALABASH_API_TOKEN": "abc123",
        "CALABASH_DB": "postgresql://ann:xyz789@host/pool",
        "CALABASH_SIM": "lab",
    }
    return run(tmp_path_factory.mktemp("project"), files, secrets, workers=request.param)


def test_last_lines_name_the_directory_of_each_failed_test(done: Run) -> None:
    last = [index for index, line in enumerate(done.lines) if not line.startswith("evidence: ")][-1]
    assert all(line.startswith("evidence: ") for line in done.lines[last + 1 :])
    assert any(" failed" in line for line in done.lines[last - 1 : last + 1])
    kept = done.kept()
    assert len(kept) == len(done.lines) - last - 1
    ended = {"test_crashes", "test_hangs_in_a_thread"} if "test_crashes" in kept else set()
    assert set(kept) == ended | {
        "test_fails",
        "test_fails_with[a/b]",
        "test_fails_with[a-b]",
        "test_fails_with_a_site",
        "test_fails_with_a_factory",
        "test_fails_in_set_up",
        "test_fails_in_tear_down",
        "test_fails_twice",
        "test_fails_inside_with",
        "test_fails_by_example",
        "test_fails_by_random_example",
        "test_hangs",
    }
    assert {path for path in done.failed.iterdir() if path.is_dir()} == set(kept.values())


def test_report_says_what_failed_and_where(done: Run) -> None:
    report = done.report("test_fails")
    assert report.startswith("test       test_kinds.py::test_fails\nphase      call\n")
    assert re.search(r"^duration   \d+\.\d\d\d s$", report, re.MULTILINE)
    assert "assert 1 == 2" in report
    assert "printed by the test" in report
    assert re.search(r"^load       [0-9.]+ [0-9.]+ [0-9.]+ on \d+ of \d+ processors$", report, re.MULTILINE)
    assert re.search(r"^worker     (none|gw[01])$", report, re.MULTILINE)
    assert "\nrepeat     pytest test_kinds.py::test_fails\n" in report


def test_report_has_the_variables_of_the_product_without_secrets(done: Run) -> None:
    report = done.report("test_fails")
    assert "CALABASH_SIM=lab" in report
    assert "CALABASH_API_TOKEN=(not shown)" in report
    assert "CALABASH_DB=postgresql://(not shown)@host/pool" in report
    assert "abc123" not in report
    assert "xyz789" not in report


def test_files_are_copied_before_fixtures_are_torn_down(done: Run) -> None:
    files = done.files("test_fails")
    assert files.pop("call/daemon/home/pool.log") == "the log of home"
    assert files.pop("call/daemon/home/pool.db-wal") == "journal"
    assert files == {"call/tmp_path/test_fails0/notes.txt": "of the test"}
    assert "daemon/home/admin.token: 11 bytes, not copied: its name suggests a secret" in done.report("test_fails")


def test_files_of_objects_inside_a_fixture_value_are_copied(done: Run) -> None:
    assert "the log of home" in done.files("test_fails_with_a_site").values()
    made = done.files("test_fails_with_a_factory")
    assert {text for path, text in made.items() if path.endswith("pool.log")} == {
        "the log of made0",
        "the log of made1",
    }


def test_failure_in_set_up_and_tear_down_is_kept_with_its_phase(done: Run) -> None:
    assert "phase      setup\n" in done.report("test_fails_in_set_up")
    assert done.files("test_fails_in_set_up")["setup/daemon/home/pool.log"] == "the log of home"
    assert "phase      teardown\n" in done.report("test_fails_in_tear_down")
    twice = done.report("test_fails_twice")
    assert re.findall(r"^phase      (\w+)$", twice, re.MULTILINE) == ["call", "teardown"]
    assert done.files("test_fails_twice")["call/daemon/home/pool.log"] == "the log of home"


def test_object_that_was_closed_by_the_error_is_rescued(done: Run) -> None:
    files = done.files("test_fails_inside_with")
    assert files["closed/Daemon/opened/pool.log"] == "the log of opened"


def test_falsifying_example_and_seed_are_in_the_report(done: Run) -> None:
    report = done.report("test_fails_by_example")
    assert re.search(r"test_fails_by_example\(\s*E?\s*n=1000", report)
    assert "derandomized: each run of the test tries the same examples" in report
    assert re.search(r"^seed \d+: decorate the test", done.report("test_fails_by_random_example"), re.MULTILINE)


def test_test_that_was_stopped_by_a_timeout_is_kept(done: Run) -> None:
    assert "Timeout (>0.5s) from pytest-timeout" in done.report("test_hangs")
    assert done.files("test_hangs")["call/daemon/home/pool.log"] == "the log of home"


def test_controller_keeps_a_test_that_crashed_its_worker(done: Run) -> None:
    if "test_crashes" not in done.kept():
        assert not any("test_ending.py" in line for line in done.lines)
        return
    assert "crashed while running 'test_ending.py::test_crashes'" in done.report("test_crashes")
    assert re.search(r"^worker     gw[01]$", done.report("test_crashes"), re.MULTILINE)
    files = done.files("test_crashes")
    assert files["crash/daemon/home/pool.log"] == "the log of home"
    assert files["crash/tmp_path/test_crashes0/notes.txt"] == "before the crash"


def test_timeout_by_thread_is_kept_by_the_worker_and_named_by_the_controller(done: Run) -> None:
    if "test_hangs_in_a_thread" not in done.kept():
        assert not any("test_hanging.py" in line for line in done.lines)
        return
    report = done.report("test_hangs_in_a_thread")
    assert re.findall(r"^phase      (\w+)$", report, re.MULTILINE) == ["timeout", "crash"]
    assert "threading.Event().wait()" in report
    assert "timeout/daemon/home/pool.log" in done.files("test_hangs_in_a_thread")


def test_timeout_by_thread_without_workers_names_the_evidence_in_the_last_line(tmp_path: Path) -> None:
    found = run(tmp_path, {"test_hanging.py": _HANGING})
    assert found.lines[-1].startswith("evidence: build/failed/")
    report = found.report("test_hangs_in_a_thread")
    assert "threading.Event().wait()" in report
    assert "printed before the end" in report
    assert found.files("test_hangs_in_a_thread")["timeout/daemon/home/pool.log"] == "the log of home"


def test_run_keeps_a_limited_number_of_tests(tmp_path: Path) -> None:
    many = f"import pytest\n@pytest.mark.parametrize('n', range({TESTS_MAX + 2}))\ndef test_fails(n): assert False\n"
    found = run(tmp_path, {"test_many.py": many})
    assert len(found.kept()) == TESTS_MAX
    assert len(list(found.failed.glob("*/report.txt"))) == TESTS_MAX
    assert sum(line.startswith(f"evidence: none, {TESTS_MAX} tests were kept") for line in found.lines) == 2


def test_limit_counts_the_tests_of_all_processes_of_a_run(tmp_path: Path) -> None:
    controller, worker = (RunDirectory(tmp_path / "failed", "same") for _ in range(2))
    controller.begin(keep=False)
    kept = [(controller, worker)[n % 2].claim(f"test_x.py::test_{n}") for n in range(TESTS_MAX)]
    assert len(set(kept)) == TESTS_MAX
    assert (controller.claim("one too many"), worker.claim("one too many")) == (None, None)
    assert worker.claim("test_x.py::test_0") == kept[0]
    controller.end()


def test_next_run_removes_the_evidence_unless_told_to_keep_it(tmp_path: Path) -> None:
    files = {"test_one.py": "def test_fails(): assert False\n"}
    first = tmp_path / "build" / "failed" / slug_of("test_one.py::test_fails")
    first.mkdir(parents=True)
    (first / "mark").touch()
    (second,) = run(tmp_path, files, {KEEP: "1"}).kept().values()
    assert second.name == f"{first.name}-2"
    assert (first / "mark").exists()
    later = run(tmp_path, files)
    assert later.kept() == {"test_fails": first}
    assert not (first / "mark").exists()
    assert [path.name for path in later.failed.iterdir() if path.is_dir()] == [first.name]


def test_run_beside_another_keeps_the_evidence_of_the_other(tmp_path: Path) -> None:
    first, second, third = (RunDirectory(tmp_path / "failed", run) for run in ("a", "b", "c"))
    first.begin(keep=False)
    kept = first.claim("test_x.py::test_a")
    assert kept is not None
    second.begin(keep=False)
    assert kept.is_dir()
    assert second.claim("test_x.py::test_a") == kept.with_name(f"{kept.name}-2")
    assert first.claim("test_x.py::test_a") == kept
    first.end()
    second.end()
    third.begin(keep=False)
    assert not kept.exists()
    third.end()


def test_released_directory_is_removed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "failed", "a")
    directory.begin(keep=False)
    kept = directory.claim("test_x.py::test_a")
    assert kept is not None
    directory.release("test_x.py::test_a")
    directory.release("test_x.py::test_never_claimed")
    assert not kept.exists()
    directory.end()


@pytest.mark.parametrize("node_id", ["tests/a.py::test_b[x/../y z]", "tests/a.py::test_" + "n" * 300, "a\n\0\udcff/.."])
def test_slug_is_a_safe_and_short_file_name(node_id: str) -> None:
    slug = slug_of(node_id)
    assert re.fullmatch(r"[A-Za-z0-9_=+,][A-Za-z0-9_.=+,-]*", slug)
    assert len(f"{slug}-99") <= 120
    assert slug != slug_of(node_id + "n")


def test_object_that_fails_to_name_its_files_does_not_hide_the_others(tmp_path: Path) -> None:
    class Closed:
        def evidence(self) -> list[Path]:
            raise RuntimeError("closed")

    class Open:
        def evidence(self) -> list[Path]:
            return [tmp_path]

    class Any:
        """Has every attribute, as a mock."""

        def __getattr__(self, name: str) -> object:
            return lambda: [Path("/etc")]

    found = sources_of({"closed": Closed(), "mock": Any(), "many": {"one": [Open()]}, "tmp_path": tmp_path / os.curdir})
    assert found == {"many.one.0": [tmp_path], "tmp_path": [tmp_path]}
