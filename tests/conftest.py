"""Groups of tests, profiles of property tests, and the fixtures and plug-ins of all tests.

Every test is in one group, and the targets of the Makefile run groups:

========== ============== =====================================================================================
group      run by         what
========== ============== =====================================================================================
`quick`    make test      needs neither root, Go, a browser nor network namespaces; on all cores
`complete` make test-all  everything else that may run beside other tests; on all cores
`system`   make test-all  whole clusters and emulated machines; beside the complete group, all tests of a module by one worker
========== ============== =====================================================================================

A folder or module has a default group (``_GROUP_OF_PATH``); a test of a quick module overrides it with a marker, as
``@pytest.mark.complete``. A test that uses a cluster is in ``system`` wherever it stands.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.examples import load_profile
from tests.kube.fixtures import control_plane, own_control_plane, pytest_runtest_makereport, real_node

__all__ = ["control_plane", "own_control_plane", "pytest_runtest_makereport", "real_node"]

pytest_plugins = ("tests.completed", "tests.evidence", "tests.scheduling", "tests.temporary", "tests.timing")

load_profile()

_LEFT_OPEN_MAX = 64

_GROUPS = frozenset({"quick", "complete", "system"})
_HERE = Path(__file__).resolve().parent
_CLUSTERS = frozenset({"control_plane", "own_control_plane", "real_node"})
# The longest path decides; what is not named is quick.
_GROUP_OF_PATH = {
    "console": "complete",
    "daemons": "complete",
    "daemons/test_cli_sim.py": "quick",
    "daemons/test_pool.py": "quick",
    "daemons/test_pool_api.py": "quick",
    "daemons/test_pool_crashes.py": "quick",
    "guides": "complete",
    "hostile": "complete",
    "kube": "system",
    # Compilations of many seconds: for another processor, and with sanitizers.
    "native/test_aarch64.py": "complete",
    "native/test_remote_sanitized.py": "complete",
    "native/test_shim_sanitized.py": "complete",
    "native/test_sim_cuda_sanitized.py": "complete",
    "native/test_sim_mps_sanitized.py": "complete",
    "native/test_sim_nvml_sanitized.py": "complete",
    "native/test_sim_ptx_fuzz.py": "complete",
    "net": "complete",
    "programs": "complete",
    "soak": "complete",
    "vfio": "system",
}


@pytest.fixture(autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    """Fail if a test leaves many descriptors open: later tests of the same process would lack them."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    if len(os.listdir("/proc/self/fd")) - before > _LEFT_OPEN_MAX:
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) - before <= _LEFT_OPEN_MAX, "the test leaves descriptors open"


def group_of(item: pytest.Item) -> str:
    """Return the group that a test runs in."""
    path = item.path.relative_to(_HERE)
    if not _CLUSTERS.isdisjoint(getattr(item, "fixturenames", ())):
        return "system"
    named = (parent.as_posix() for parent in (path, *path.parents))
    default = next((_GROUP_OF_PATH[name] for name in named if name in _GROUP_OF_PATH), "quick")
    markers = (marker.name for marker in item.iter_markers() if marker.name in _GROUPS)
    return str(next(markers, default))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders without quick tests when only those are wanted: importing the others takes longer."""
    if config.option.markexpr != "quick" or not collection_path.is_relative_to(_HERE):
        return None
    name = collection_path.relative_to(_HERE).as_posix()
    below = [group for path, group in _GROUP_OF_PATH.items() if path == name or path.startswith(f"{name}/")]
    return True if below and "quick" not in below and _GROUP_OF_PATH.get(name, "quick") != "quick" else None


# When an item is made, so that `-m quick` sees the marker.
def pytest_itemcollected(item: pytest.Item) -> None:
    if not item.path.is_relative_to(_HERE):
        return
    group = group_of(item)
    if item.get_closest_marker(group) is None:
        item.add_marker(getattr(pytest.mark, group))
    if group == "system":  # the first test of a module builds what is not cached, and starts the cluster
        item.add_marker(pytest.mark.timeout(1200))
