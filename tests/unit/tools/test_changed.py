"""`python -m tools.changed`: the tests that it selects for a change, in a small repository of the same structure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools import changed
from tools.changed import Concern, Times, fit, fixtures_of, native_tests, walk

ROOT = Path(__file__).resolve().parents[3]

# The product: `engine` imports `queue`, which imports `units`; `planner` is another package, which imports `engine`.
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["quick", "complete"]\npythonpath = ["."]\n'
    'addopts = "--import-mode=importlib"\n',
    ".gitignore": "/build/\n__pycache__/\n",
    "src/calabash/__init__.py": "",
    "src/calabash/model/__init__.py": "",
    "src/calabash/model/units.py": "MIB = 1\n",
    "src/calabash/sched/__init__.py": "",
    "src/calabash/sched/queue.py": "from calabash.model.units import MIB\n",
    "src/calabash/sched/engine.py": "from calabash.sched.queue import MIB\n",
    "src/calabash/sched/text.py": "",
    "src/calabash/planner/__init__.py": "from calabash.planner.core import plan\n",
    "src/calabash/planner/core.py": "from calabash.sched.engine import MIB\n\n\ndef plan() -> None: ...\n",
    "src/calabash/planner/daemon.py": "from calabash.planner import plan\n",
    "src/calabash/planner/page.html": "",
    "src/calabash/ledger/__init__.py": "",
    "src/calabash/ledger/rates.py": "",
    "tests/conftest.py": "from tests.helpers.pools import pool\n\n"
    "_GROUP_OF_PATH = {'daemons': 'complete', 'daemons/test_short.py': 'quick'}\n",
    "tests/helpers/pools.py": "import pytest\nfrom calabash.ledger import rates\n\n\n@pytest.fixture\ndef pool(): ...\n",
    "tests/helpers/worlds.py": "from tests.helpers.parts import part\n",
    "tests/helpers/parts.py": "from calabash.ledger.rates import __name__ as part\n",
    "tests/unit/model/test_units.py": "import pytest\nfrom calabash.model import units\n\n\n@pytest.mark.quick\n"
    "def test_a_unit_is_one():\n    assert units.MIB == 1\n",
    "tests/unit/sched/test_engine.py": "from calabash.sched import engine\n",
    "tests/unit/sched/test_queue.py": "from calabash.sched.queue import MIB\n",
    "tests/unit/sched/test_text.py": "",
    "tests/unit/planner/test_core.py": "import calabash.planner\n",
    "tests/unit/planner/test_page.py": "",
    "tests/unit/test_chain.py": "from tests.helpers.worlds import part\n",
    "tests/unit/test_fixture.py": "def test_with_a_pool(pool): ...\n",
    "tests/unit/test_bench.py": "from bench.figures import x\n",
    "tests/unit/test_docs.py": 'PAGE = ROOT / "docs" / "how-to" / "start.md"\nALL = (ROOT / "docs" / "concepts").glob("*")\n',
    "tests/unit/tools/test_changed.py": 'from tools import changed\nFILES = ["docs/how-to/start.md"]\n',
    "tests/unit/test_chart.py": 'CHART = ROOT / "charts" / "calabash"\n',
    "tests/daemons/conftest.py": "from tests.daemons.world import World\n\n\ndef world(): World()\n",
    "tests/daemons/world.py": 'COMMAND = ["python", "-m", "calabash.planner.daemon"]\n',
    "tests/daemons/test_daemon.py": "def test_daemon(world): ...\n",
    "tests/daemons/test_other.py": "def test_other(): ...\n",
    "tests/scenarios/test_scenarios.py": 'FILES = HERE.glob("*.scenario")\n',
    "tests/scenarios/one.scenario": "",
    "tests/native/test_shim_graph.py": 'PROGRAM = "captures"\n',
    "tests/native/test_shim_view.py": "",
    "tests/native/test_sim_ptx.py": "",
    "tests/native/captures.c": "",
    "bench/__init__.py": "",
    "bench/figures.py": "from calabash.ledger import rates as x\n",
    "tools/__init__.py": "",
    "native/shim/graph.c": "",
    "docs/how-to/start.md": "",
    "docs/concepts/queues.md": "",
    "docs/notes.md": "",
    "charts/calabash/values.yaml": "",
}


class Tree:
    """A repository with one commit."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(self, *words: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], cwd=self.root, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "change")

    def write(self, path: str, text: str = "# changed\n") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.root / path).open("a") as file:
            file.write(text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("PYTEST_XDIST_WORKER", None)
        command = [sys.executable, "-m", "tools.changed", *words]
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)

    def output(self, *words: str) -> str:
        done = self.run("--list", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def selected(self, *words: str) -> dict[str, int]:
        """Return the distance of each selected test file."""
        lines = re.findall(r"^(\d+) +[\d.]+ s  tests/(\S+): ", self.output("--seconds", "10000", *words), re.MULTILINE)
        return {path: int(distance) for distance, path in lines}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository") / "tree"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    shutil.copy(ROOT / "tools" / "changed.py", root / "tools")
    tree = Tree(root)
    tree.git("init", "--quiet", "--initial-branch", "main")
    tree.commit()
    tree.output("--base", "HEAD")  # nothing has changed
    return root


@pytest.fixture
def tree(template: Path, tmp_path: Path) -> Tree:
    shutil.copytree(template, tmp_path / "tree")
    return Tree(tmp_path / "tree")


def test_unchanged_tree_runs_no_test(tree: Tree) -> None:
    done = tree.run()
    assert (done.returncode, done.stdout) == (0, "no file has changed since HEAD\n")


def test_changed_module_selects_its_mirror_its_importers_and_the_mirrors_of_importing_packages(tree: Tree) -> None:
    tree.write("src/calabash/sched/engine.py")
    assert tree.selected() == {
        "unit/sched/test_engine.py": 1,
        "unit/planner/test_core.py": 2,  # by the package's __init__, which imports core, which imports engine
        "unit/sched/test_queue.py": 2,  # in the folder of the package
        "unit/sched/test_text.py": 2,
        "unit/planner/test_page.py": 3,  # in the folder of a package that imports engine
    }


def test_mirror_of_a_changed_module_runs_without_an_import_and_without_time(tree: Tree) -> None:
    tree.write("src/calabash/sched/text.py")
    assert tree.selected() == {
        f"unit/sched/test_{name}.py": 1 + (name != "text") for name in ("engine", "queue", "text")
    }
    assert re.findall(r"tests/\S+\.py", tree.output("--seconds", "0")) == ["tests/unit/sched/test_text.py"]


def test_importers_beyond_three_steps_are_selected_only_on_request(tree: Tree) -> None:
    tree.write("src/calabash/sched/queue.py")
    assert "unit/planner/test_core.py" in tree.selected()
    tree.git("checkout", "--", ".")
    tree.write("src/calabash/model/units.py")
    assert tree.selected()["unit/sched/test_engine.py"] == 3
    assert "unit/planner/test_core.py" not in tree.selected()
    assert "left out: 1 for distance" in tree.output("--seconds", "10000")
    assert tree.selected("--all-importers")["unit/planner/test_core.py"] == 4


def test_module_is_found_through_a_chain_of_helpers_a_fixture_and_a_benchmark(tree: Tree) -> None:
    tree.write("src/calabash/ledger/rates.py")
    assert tree.selected() == {"unit/test_bench.py": 2, "unit/test_fixture.py": 2, "unit/test_chain.py": 3}
    assert (
        "tests/unit/test_chain.py: imports tests.helpers.worlds, which imports tests.helpers.parts, "
        "which imports calabash.ledger.rates (changed)" in tree.output()
    )


def test_changed_helper_selects_the_tests_that_import_it(tree: Tree) -> None:
    tree.write("tests/helpers/parts.py")
    assert tree.selected() == {"unit/test_chain.py": 2}


def test_fixture_of_the_root_conftest_concerns_only_tests_that_name_it(tree: Tree) -> None:
    tree.write("tests/helpers/pools.py")
    assert tree.selected() == {"unit/test_fixture.py": 1}


def test_changed_conftest_selects_the_tests_below_it(tree: Tree) -> None:
    tree.write("tests/daemons/conftest.py")
    assert tree.selected("--complete") == {"daemons/test_daemon.py": 1, "daemons/test_other.py": 1}


def test_module_that_a_helper_starts_by_a_command_counts_as_imported(tree: Tree) -> None:
    tree.write("src/calabash/planner/daemon.py")
    assert tree.selected("--complete")["daemons/test_daemon.py"] == 2
    assert "daemons/test_other.py" not in tree.selected("--complete")


def test_tests_of_other_groups_are_left_out_and_named_when_changed(tree: Tree) -> None:
    tree.write("tests/daemons/test_daemon.py")
    tree.write("tests/unit/test_bench.py")
    assert tree.selected() == {"unit/test_bench.py": 0}
    assert "left out: 1 not quick (--complete)\n" in tree.output()
    assert "changed, but not quick (--complete): tests/daemons/test_daemon.py\n" in tree.output()
    tree.write("tests/daemons/test_daemon.py", "import pytest\n\n\n@pytest.mark.quick\ndef test_short(): ...\n")
    tree.write("tests/daemons/test_short.py")
    tree.write("tests/unit/test_chain.py", "pytestmark = pytest.mark.complete\n")
    assert tree.selected() == dict.fromkeys(
        ("unit/test_bench.py", "daemons/test_daemon.py", "daemons/test_short.py"), 0
    )


def test_untracked_files_count_as_changed_and_ignored_files_do_not(tree: Tree) -> None:
    tree.write("build/tests/test_made.py")
    tree.write("tests/unit/ledger/test_rates.py", "")
    assert tree.selected() == {"unit/ledger/test_rates.py": 0}
    tree.write("src/calabash/ledger/rates.py")
    assert tree.selected()["unit/test_bench.py"] == 2


def test_deleted_module_selects_its_mirror_folder_and_the_tests_that_still_import_it(tree: Tree) -> None:
    (tree.root / "src/calabash/ledger/rates.py").unlink()
    (tree.root / "src/calabash/sched/queue.py").unlink()
    selected = tree.selected()
    assert selected["unit/sched/test_queue.py"] == 1
    assert selected["unit/sched/test_text.py"] == 2
    assert {"unit/test_bench.py", "unit/test_chain.py", "unit/test_fixture.py"} <= set(selected)


def test_deleted_test_file_is_not_run(tree: Tree) -> None:
    (tree.root / "tests/unit/test_chain.py").unlink()
    assert tree.output().startswith("0 of ")


def test_renamed_module_concerns_importers_of_the_old_and_of_the_new_name(tree: Tree) -> None:
    tree.git("mv", "src/calabash/sched/engine.py", "src/calabash/sched/motor.py")
    tree.write("tests/unit/test_bench.py", "from calabash.sched import motor\n")
    tree.write("tests/unit/test_page.py", "from calabash.sched import motor\n")
    tree.commit()
    selected = tree.selected("--base", "HEAD~1")
    assert (selected["unit/test_page.py"], selected["unit/sched/test_engine.py"]) == (0, 1)
    assert "unit/planner/test_core.py" in selected


def test_change_is_compared_with_the_merge_base(tree: Tree) -> None:
    tree.git("checkout", "--quiet", "-b", "topic")
    tree.write("tests/unit/test_chain.py")
    tree.commit()
    tree.git("checkout", "--quiet", "main")
    tree.write("tests/unit/test_bench.py")
    tree.commit()
    tree.git("update-ref", "refs/remotes/origin/main", "main")
    tree.git("checkout", "--quiet", "topic")
    assert tree.selected() == {"unit/test_chain.py": 0}  # origin/main exists, and differs
    assert tree.selected("--base", "HEAD") == {}


def test_unknown_base_fails(tree: Tree) -> None:
    done = tree.run("--base", "nowhere")
    assert done.returncode != 0
    assert "git merge-base failed" in done.stderr


def test_files_other_than_python_select_the_tests_that_name_or_read_them(tree: Tree) -> None:
    for path, selected in {
        "docs/how-to/start.md": {"unit/test_docs.py": 1},
        "docs/concepts/queues.md": {"unit/test_docs.py": 2},
        "charts/calabash/values.yaml": {"unit/test_chart.py": 2},
        "tests/scenarios/one.scenario": {"scenarios/test_scenarios.py": 1},
        "tests/native/captures.c": {"native/test_shim_graph.py": 1},
        "native/shim/graph.c": {"native/test_shim_graph.py": 1, "native/test_shim_view.py": 2},
        "src/calabash/planner/page.html": {"unit/planner/test_core.py": 2},
    }.items():
        tree.write(path)
        assert tree.selected() == selected, path
        tree.git("checkout", "--", ".")


def test_files_without_a_test_are_named_in_one_line(tree: Tree) -> None:
    tree.write("docs/notes.md")
    tree.write("docs/how-to/next.md")
    tree.write("bench/other.py")
    tree.write("tests/unit/test_chain.py")
    assert "\nno test for: bench/other.py, docs/how-to/next.md, docs/notes.md\n" in tree.output()


def test_summary_counts_changed_tests_and_importers(tree: Tree) -> None:
    tree.write("tests/unit/test_chain.py")
    tree.write("src/calabash/ledger/rates.py")
    tests = sum(path.startswith("tests/") and "/test_" in path for path in FILES)
    assert tree.output().startswith(f"3 of {tests} test files: changed 1, importers 2; about ")


def test_selected_tests_run_and_the_exit_code_is_that_of_pytest(tree: Tree) -> None:
    tree.write("src/calabash/model/units.py")
    arguments = ("--", "-n", "0", "-p", "no:cacheprovider")
    done = tree.run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    tree.write("src/calabash/model/units.py", "MIB = 2\n")
    failed = tree.run(*arguments)
    assert failed.returncode == 1
    assert "test_a_unit_is_one" in failed.stdout


def test_selection_without_a_test_of_the_group_succeeds(tree: Tree) -> None:
    tree.write("tests/unit/test_fixture.py")  # its test is not marked quick
    done = tree.run("--", "-n", "0", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 deselected" in done.stdout


class FixedTimes(Times):
    """Times of one second for short test files, and ten for the others."""

    def seconds_of(self, path: str) -> float:
        return 1.0 if "short" in path else 10.0


def test_time_limit_keeps_the_nearest_and_of_those_the_shortest() -> None:
    concerns = [Concern(path, distance, "") for path, distance in (("far", 3), ("near", 1), ("short", 2), ("next", 2))]
    assert [concern.path for concern in fit(concerns, FixedTimes(), 21.0)] == ["near", "short", "next"]
    assert [concern.path for concern in fit(concerns, FixedTimes(), 20.0)] == ["near", "short"]


def test_changed_tests_run_whatever_time_they_need() -> None:
    concerns = [Concern("changed", 0, "", must=True), Concern("mirror", 1, "", must=True), Concern("short", 1, "")]
    assert [concern.path for concern in fit(concerns, FixedTimes(), 5.0)] == ["changed", "mirror"]


def test_package_that_exports_its_changed_module_has_the_distance_of_the_module() -> None:
    reached = walk({"a.b": (0, "")}, {"a.b": {"a", "c"}, "a": {"d"}})
    assert {name: distance for name, (distance, _) in reached.items()} == {"a.b": 0, "a": 0, "c": 1, "d": 1}


def test_fixtures_need_what_they_and_their_helpers_name() -> None:
    needs, always = fixtures_of(
        "import pytest\nfrom a import one\nfrom b import two\n\n\ndef helper(): return one()\n\n\n"
        "@pytest.fixture\ndef first(): helper()\n\n\n@pytest.fixture(autouse=True)\ndef second(first): two()\n"
    )
    assert needs["first"] >= {"a.one"}
    assert not needs["first"] & {"b.two"}
    assert needs["second"] >= {"a.one", "b.two"}
    assert always == {"second"}


def test_every_folder_of_native_has_a_row_and_every_row_names_tests() -> None:
    native = ROOT / "native"
    folders = {path.parent.relative_to(native).as_posix() for path in native.rglob("*") if path.is_file()}
    folders = {folder.removeprefix(".") for folder in folders if "__pycache__" not in folder}
    assert folders <= set(changed.NATIVE_TESTS)
    for folder, patterns in changed.NATIVE_TESTS.items():
        assert (native / folder).is_dir()
        assert [pattern for pattern in patterns if not list((ROOT / "tests").glob(pattern))] == []


def test_every_test_of_native_code_is_in_a_row() -> None:
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "native").glob("test_*.py")]
    found = {test for folder in changed.NATIVE_TESTS for test in native_tests(f"native/{folder}/x.c", tests)}
    # Both are about the whole product on another processor.
    assert set(tests) - found == {"tests/native/test_aarch64.py", "tests/native/test_aarch64_image.py"}


def test_groups_of_paths_are_read_from_the_root_conftest() -> None:
    groups = changed.default_groups()
    assert {"quick", "complete", "system"} <= set(groups.values())
    assert not changed.has_quick_tests("tests/kube/test_planner.py", groups)
    assert changed.has_quick_tests("tests/unit/model/test_units.py", groups)
