"""Which tests run alone, after the others: those that hold a clock against the product. And a real Kubernetes for all.

They would fail on a machine that is busy with other tests and not because of the product. ``make test`` runs everything
else first: on all cores, and then, two modules at a time, those that start a whole cluster or machine, which wait for
most of their time. Single tests say so themselves with ``@pytest.mark.alone``.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.kube.fixtures import control_plane, own_control_plane, pytest_runtest_makereport, real_node

__all__ = ["control_plane", "own_control_plane", "pytest_runtest_makereport", "real_node"]

# Properties hold no clock against anybody. ``make test`` judges a change by the same examples wherever it runs;
# ``make examples`` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("CALABASH_EXAMPLES", "same"))

_LEFT_OPEN_MAX = 64

_HERE = Path(__file__).resolve().parent
_CLUSTERS = frozenset({"control_plane", "own_control_plane", "real_node"})
_ALONE = frozenset(
    {
        "native/test_compute.py",
        "native/test_compute_shares.py",
        "native/test_compute_truth.py",
        "hostile/test_compute.py",
        "hostile/test_flood.py",
        "hostile/test_fuzz.py",
    }
)


@pytest.fixture(scope="session", autouse=True)
def way_for_other_users(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Other users may pass through the directories above each test's own, which stays closed until a test opens it."""
    base = tmp_path_factory.getbasetemp()
    for directory in (base, *base.parents):
        if not directory.name.startswith(("pytest-", "popen-")):
            break
        directory.chmod(0o711)


@pytest.fixture(autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    """What one test leaves open is missing in those after it, thousands of them in one process."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    if len(os.listdir("/proc/self/fd")) - before > _LEFT_OPEN_MAX:
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) - before <= _LEFT_OPEN_MAX, "the test leaves descriptors open"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(_HERE):
            continue
        path = item.path.relative_to(_HERE)
        clusters = path.parts[0] == "kube" or not _CLUSTERS.isdisjoint(getattr(item, "fixturenames", ()))
        if path.as_posix() in _ALONE:
            item.add_marker(pytest.mark.alone)
        elif (clusters or path.parts[0] == "vfio") and item.get_closest_marker("alone") is None:
            item.add_marker(pytest.mark.system)
        if clusters:  # the first test of a module builds what is not cached, and starts it
            item.add_marker(pytest.mark.timeout(600))
