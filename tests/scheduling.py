"""Pytest plug-in for ``--dist loadscope``: assignment of tests to workers, and the order in which tests start.

A module whose fixtures start something large (a cluster, a browser, a network) is run by one worker as a whole; every other
test is handed out alone. Such modules start first, the longest of them before all others, so that no worker is left with a
long module at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

WHOLE_MODULES = ("console", "contract", "guides", "kube", "net", "programs", "vfio")
LONGEST = ("kube/test_product.py", "console/test_console.py", "console/test_roles.py", "kube/test_modes.py")
_TESTS = "tests/"


def is_whole(module: str) -> bool:
    """Return True if one worker runs all tests of a module, given by its path below ``tests``."""
    return module.startswith(tuple(f"{folder}/" for folder in WHOLE_MODULES))


def rank(module: str) -> int:
    """Return the order in which modules start: the longest, then other whole modules, then single tests."""
    if module in LONGEST:
        return LONGEST.index(module)
    return len(LONGEST) if is_whole(module) else len(LONGEST) + 1


class ModulesAndTests(LoadScopeScheduling):  # type: ignore[misc]
    """Work units of pytest-xdist that are modules or single tests."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0].removeprefix(_TESTS)
        return module if is_whole(module) else nodeid


@pytest.hookimpl(optionalhook=True)  # some tests start a pytest without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Replace the scheduler of ``--dist loadscope``."""
    if config.getvalue("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False
    return ModulesAndTests(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests by the order in which they are to start."""
    tests = Path(__file__).parent
    items.sort(key=lambda item: rank(item.path.relative_to(tests).as_posix()) if item.path.is_relative_to(tests) else 0)
