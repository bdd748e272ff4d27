"""Fixtures with a real Kubernetes, which ``tests/conftest.py`` makes available to all tests.

If the machine cannot run a cluster, the fixtures skip the test and give the reason. The hook adds the logs of the
components to the report of a failed test.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from tests.kube.cluster import Cluster
from tests.kube.needs import need
from tests.kube.node import RealNode


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """One control plane for the whole session: ``cluster.kubeconfig``, ``cluster.api``, ``cluster.kubectl(...)``.

    It has no nodes (``cluster.fake_nodes(...)`` creates some) and no node lifecycle controller. Tests share it: each
    test uses namespaces, nodes and cluster-wide objects with names of its own, removes objects that other tests would
    see, and kills no component.
    """
    need()
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def own_control_plane() -> Iterator[Cluster]:
    """A control plane for one module, whose components may be killed and restarted."""
    need()
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def real_node() -> Iterator[RealNode]:
    """A node with containerd and a kubelet, and its cluster (``real_node.cluster``), for one module.

    Tests may restart containerd and the kubelet.
    """
    need(node=True)
    with Cluster(lifecycle=True) as cluster:
        yield RealNode(cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            cluster = getattr(value, "cluster", value)  # the cluster of a node, or of a test's wrapper of a node
            if isinstance(cluster, Cluster):
                report.sections.append(("logs of the cluster", cluster.logs()))
    return report
