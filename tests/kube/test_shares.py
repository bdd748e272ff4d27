"""Compute shares of pods that want all of a card, judged by the driver's own books."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import PODS, GpuNode, sliced
from tests.kube.measured import shares
from tests.kube.needs import need
from tests.kube.node import RealNode

KERNEL_NS = 1_000_000


@pytest.fixture(scope="module")
def gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    need(node=True)
    with Cluster(lifecycle=True) as cluster:
        yield GpuNode(RealNode(cluster), tmp_path_factory.mktemp("gpu_node"))


def said(gpu_node: GpuNode, name: str) -> str:
    try:
        return gpu_node.log(name)
    except RuntimeError:  # its container is being made
        return ""


@pytest.mark.alone
def test_two_pods_on_one_card_have_30_and_70_percent_of_its_time(gpu_node: GpuNode) -> None:
    device = gpu_node.devices()[0]
    asked = (30, 70)
    names = [
        gpu_node.run(
            [sliced("main", memory_mib=2048, cores=cores, devices=[device])],
            {"main": f"exec load tenant 60 {KERNEL_NS}"},
        )
        for cores in asked
    ]
    for name in names:
        gpu_node.wait(name, "Running")
        gpu_node.cluster.wait_for(partial(said, gpu_node, name), f"{name} to have its memory")
    uids = [gpu_node.cluster.api.get(f"{PODS}/{name}")["metadata"]["uid"] for name in names]
    got = shares(gpu_node.state, uids, 5)
    assert [got[uid] for uid in uids] == pytest.approx(list(asked), abs=3)
    for name in names:
        gpu_node.delete(name)
