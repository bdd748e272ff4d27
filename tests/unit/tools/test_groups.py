"""Groups that ``tests/conftest.py`` puts tests into, as pytest and pytest-xdist see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.scheduling import LONGEST, rank

ROOT = Path(__file__).resolve().parents[3]
GROUP_OF_MODULE = {
    "tests/contract/test_kube_ovn.py": "complete",
    "tests/contract/test_kubelet_real.py": "system",
    "tests/kube/test_programs.py": "system",
    "tests/net/test_promises.py": "complete",
    "tests/unit/model/test_units.py": "quick",
}


def run_pytest(*words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=environment | {"CALABASH_FAILED_KEEP": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("group", ["quick", "complete", "system"])
def test_modules_are_selected_by_the_marker_of_their_own_group_only(group: str) -> None:
    collected = run_pytest(*GROUP_OF_MODULE, "--collect-only", "-q", "-m", group)
    found = {line.partition(":")[0] for line in collected.splitlines() if line.startswith("tests/")}
    assert found == {path for path, its_group in GROUP_OF_MODULE.items() if its_group == group}


def test_all_tests_of_a_module_with_a_large_fixture_run_in_one_worker() -> None:
    """``kube/test_programs.py`` starts no cluster, but is in a folder whose modules do."""
    said = run_pytest("tests/kube/test_programs.py", "-n2", "--dist", "loadscope", "-vv")
    passed = [line for line in said.splitlines() if " PASSED tests/kube/test_programs.py::" in line]
    assert len(passed) > 2
    assert len({line.split()[0] for line in passed}) == 1, "they ran in one worker"


def test_long_modules_start_before_other_whole_modules_and_these_before_single_tests() -> None:
    modules = ["daemons/test_pool.py", "kube/test_cluster.py", "kube/test_product.py"]
    assert sorted(modules, key=rank) == ["kube/test_product.py", "kube/test_cluster.py", "daemons/test_pool.py"]
    assert [module for module in LONGEST if not (ROOT / "tests" / module).is_file()] == []
