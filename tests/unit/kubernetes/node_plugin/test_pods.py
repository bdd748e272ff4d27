"""Tests of the store of a node's pods with a mirror of an API server in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.adapters.kube.world import WAIT_S, until
from tests.unit.kubernetes.node_plugin.node_world import NODE, OTHER, UID

from calabash.adapters.kube.objects.core import POD
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube


@pytest.fixture
def kube() -> MemoryKube:
    return MemoryKube()


@pytest.fixture
def pods(kube: MemoryKube) -> Iterator[NodePods]:
    made = NodePods(kube, NODE)
    yield made
    made.stop()


def create(kube: MemoryKube, name: str, node: str) -> str:
    """Create a pod that is bound to a node; return its UID."""
    made = kube.create(POD, {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": []}}, "team")
    return made.metadata.uid


def test_pods_are_complete_when_all_pods_of_the_node_are_listed(kube: MemoryKube, pods: NodePods) -> None:
    own, other = create(kube, "own", NODE), create(kube, "other", "n2")
    assert not pods.synced
    assert pods.known(own) is None
    assert pods.may_start(UID), "any pod may start until all pods are known"
    pods.start()
    until(lambda: pods.synced, WAIT_S)
    found = pods.known(own)
    assert found is not None
    assert found.metadata.name == "own"
    assert pods.known(other) is None
    assert not pods.may_start(UID)


def test_deleted_pod_is_no_longer_known(kube: MemoryKube, pods: NodePods) -> None:
    own = create(kube, "own", NODE)
    pods.start()
    until(lambda: pods.synced, WAIT_S)
    kube.delete(POD, "own", "team", grace_s=0)
    until(lambda: pods.known(own) is None)
    assert not pods.may_start(own)


def test_pod_that_the_mirror_has_not_received_is_read_from_the_api_server(
    kube: MemoryKube, pods: NodePods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calabash.kubernetes.node_plugin.pods.WAIT_S", 0.0)
    own = create(kube, "own", NODE)
    assert pods.find(name="team/own").metadata.uid == own
    with pytest.raises(CalabashError) as refused:
        pods.find(uid=OTHER)
    assert refused.value.reason is Reason.NOT_FOUND
