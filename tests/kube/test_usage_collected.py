"""Tests that the usage of pods on two nodes is collected in one database, also if an agent is killed meanwhile."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import GpuNode, sliced
from tests.kube.needs import need
from tests.kube.node import RealNode

from calabash.adapters.kube import load_client
from calabash.adapters.store import Store, open_store
from calabash.api.collected import AUDIENCE
from calabash.kubernetes.node_plugin.service import TICK_S
from calabash.kubernetes.usage.node_identity import NodeIdentity
from calabash.kubernetes.usage.program import AUTHORITY, AUTHORITY_KEY, UsageProgram
from calabash.model.allocation import UsageRecord
from calabash.model.errors import CalabashError
from calabash.node.membership.container import container_allocation

SYSTEM = "calabash-system"
PORT = 18445
KERNELS, KERNEL_NS = 40, 25_000_000
SCRIPT = f"load spin {KERNELS} {KERNEL_NS} </dev/null; touch /tmp/spun; until [ -e /tmp/go ]; do sleep 0.1; done"
FILES = Path("/var/lib/usage")


@dataclass(slots=True)
class Collected:
    """Two nodes with cards, and the database in which their usage is collected."""

    nodes: tuple[GpuNode, GpuNode]
    store: Store
    cluster: Cluster

    def records_of(self, allocation: str) -> list[UsageRecord]:
        return [one for one in self.store.usage() if one.allocation == allocation]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collected]:
    need(node=True)
    scratch = tmp_path_factory.mktemp("collected")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(lifecycle=True))
        real = [RealNode(cluster, name) for name in ("node1", "node2")]
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        store = open_store(f"sqlite:///{scratch / 'server.db'}")
        stack.callback(store.close)
        program = UsageProgram(
            load_client(cluster.kubeconfig),
            store,
            namespace=SYSTEM,
            listener=cluster.listen(PORT),
            names=("127.0.0.1",),
            refresh_s=0.5,
        )
        stack.callback(program.stop)
        program.start()
        where = f"/api/v1/namespaces/{SYSTEM}/configmaps/{AUTHORITY}"
        cluster.wait_for(lambda: cluster.api.exists(where), "the authority of the collection")
        authority = cluster.api.get(where)["data"][AUTHORITY_KEY]
        account(cluster)
        nodes = []
        for node in real:
            files = node.outside(str(FILES))
            files.mkdir()
            (files / "ca.crt").write_text(authority)
            (files / "token").write_text(token(cluster, node.name))
            words = [
                f"--usage=https://127.0.0.1:{PORT}",
                f"--usage-authority={FILES}/ca.crt",
                f"--usage-token={FILES}/token",
                "--usage-every=1",
            ]
            made = scratch / node.name
            made.mkdir()
            nodes.append(GpuNode(node, made, words=words, agent=f"agent-{node.name}"))
        queue = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "vision"}, "spec": {}}
        cluster.api.create("/apis/calabash.dev/v1alpha1/queues", queue)
        cluster.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {"calabash.dev/queue": "vision"}}})
        yield Collected(nodes=(nodes[0], nodes[1]), store=store, cluster=cluster)


def account(cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts"
    cluster.api.create(path, {"metadata": {"name": "calabash-agent"}})


def token(cluster: Cluster, node: str, audience: str = AUDIENCE) -> str:
    """Return a token of the agents' account that is bound to a node, like the kubelet's token for the agent's pod."""
    bound = {"kind": "Node", "apiVersion": "v1", "name": node}
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/calabash-agent/token"
    made = cluster.api.create(path, {"spec": {"audiences": [audience], "boundObjectRef": bound}})
    return str(made["status"]["token"])


class SlotWatch:
    """Thread that polls a node for slots, to measure from outside for how long the slot of a pod exists."""

    def __init__(self, node: GpuNode) -> None:
        self._node = node
        self._stop = threading.Event()
        self.polls: list[tuple[float, bool, float]] = []  # begin of a poll, its answer, its end
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            begun = time.monotonic()
            there = bool(self._node.slots())
            self.polls.append((begun, there, time.monotonic()))

    def end(self) -> tuple[float, float]:
        """Stop polling; return the least and the greatest number of seconds for which the slot can have existed."""
        self._stop.set()
        self._thread.join()
        first = next(i for i, (_, there, _) in enumerate(self.polls) if there)
        last = max(i for i, (_, there, _) in enumerate(self.polls) if there)
        least_s = self.polls[last][0] - self.polls[first][2]
        return least_s, self.polls[last + 1][2] - self.polls[first - 1][0]

    def is_over(self) -> bool:
        """Return True if the last poll found no slot."""
        return bool(self.polls) and not self.polls[-1][1]


def test_what_pods_hold_on_two_nodes_is_collected_though_an_agent_is_killed(collected: Collected) -> None:
    cluster, names, watches = collected.cluster, [], []
    for node in collected.nodes:
        watches.append(SlotWatch(node))
        plan = sliced("main", memory_mib=1024, cores=50, devices=[node.devices()[0]])
        where = {"nodeSelector": {"kubernetes.io/hostname": node.node.name}}
        names.append(node.run([plan], {"main": SCRIPT}, more=where))
    for node, name in zip(collected.nodes, names, strict=True):
        node.wait(name, "Running")
    killed = collected.nodes[0]
    cluster.kill(killed.agent)
    for node, name in zip(collected.nodes, names, strict=True):
        node.create_file_in_pod(name, "/tmp/looked")  # it runs while no agent meters it
    cluster.start(killed.agent)
    cluster.wait_for(lambda: killed.offered("calabash.dev/gpus"), "the agent that was started again")
    uids = [cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")["metadata"]["uid"] for name in names]
    for node, name in zip(collected.nodes, names, strict=True):
        cluster.wait_for(partial(spun, node, name), "the kernels of a pod")
        node.create_file_in_pod(name)
        node.wait(name, "Succeeded")
        node.delete(name)
        cluster.wait_for(partial(no_slots, node), "the slot to be gone")
    for node, watch, uid in zip(collected.nodes, watches, uids, strict=True):
        cluster.wait_for(watch.is_over, "a look without the slot")
        least_s, most_s = watch.end()
        mine = container_allocation(uid, "main")
        cluster.wait_for(partial(complete, collected, node, mine), "the usage of a pod")
        found = collected.records_of(mine)
        held_s = sum(one.to_s - one.from_s for one in found)
        assert least_s * 0.999 - TICK_S <= held_s <= most_s * 1.001 + TICK_S, (least_s, held_s, most_s)
        used_s, expected_s = sum(one.used_gpu_s for one in found), KERNELS * KERNEL_NS / 1e9
        assert abs(used_s - expected_s) <= expected_s * 0.001 + TICK_S, (used_s, expected_s)
        assert {(one.tenant, one.project, one.user, one.device) for one in found} == {
            ("vision", "default", "namespace:default", node.devices()[0])
        }
        assert all(a.to_s == b.from_s for a, b in itertools.pairwise(found)), "no gap, no overlap"
    assert [one.node for one in collected.store.collected.sources()] == ["node1", "node2"]
    assert [e.kind for e in collected.store.events() if e.kind == "usage_lost"] == []


def spun(node: GpuNode, name: str) -> bool:
    try:
        node.cluster.kubectl("exec", name, "--", "ls", "/tmp/spun")
    except RuntimeError:
        return False
    return True


def no_slots(node: GpuNode) -> bool:
    return node.slots() == []


def complete(collected: Collected, node: GpuNode, allocation: str) -> bool:
    """Return True if the allocation has ended on the node and all of its usage is collected."""
    own = open_store(f"sqlite:///{node.node.outside('/var/lib/calabash/agent.db')}")
    try:
        ended = [one for one in own.allocations(ended=True) if one.id == allocation and one.ended_at]
        return bool(ended) and own.outbox.waiting() == 0 and bool(collected.records_of(allocation))
    finally:
        own.close()


def test_token_review_names_the_node_of_an_agent_and_other_tokens_are_refused(collected: Collected) -> None:
    cluster = collected.cluster
    identity = NodeIdentity(load_client(cluster.kubeconfig), f"system:serviceaccount:{SYSTEM}:calabash-agent")
    assert identity.node_of(f"Bearer {token(cluster, 'node2')}") == "node2"
    for shown in (
        token(cluster, "node1", "https://kubernetes.default.svc"),
        cluster.secrets.token("admin"),
        "nonsense",
    ):
        with pytest.raises(CalabashError, match="not one of system:serviceaccount"):
            identity.node_of(f"Bearer {shown}")
