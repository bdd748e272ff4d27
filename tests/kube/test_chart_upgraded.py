"""Test of the life of an installation: the chart of an older version is upgraded, rolled back and uninstalled.

All of this happens under running pods with slices, on a real kubelet and containerd. The commands are those of
``docs/how-to/upgrade-kubernetes.md``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.kube import charts, older
from tests.kube.api import Json, RefusedError
from tests.kube.charts import NAMESPACE, need_helm
from tests.kube.cluster import Cluster
from tests.kube.containers import FILL, within
from tests.kube.frontproxy import front_proxy
from tests.kube.gpu_node import MIB, cuda_image
from tests.kube.images import write_archive
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.operated import OperatedCluster
from tests.kube.product import user_pod
from tests.kube.test_product import SCHEDULER, STATE, image_of_the_product, ready, scheduler_image, tokens
from tests.native.simnode import simctl

import calabash
from calabash.adapters.store import open_store
from calabash.model.versions import JOURNAL

pytestmark = pytest.mark.slow

SPACE = "vision"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
GROUP = "/apis/calabash.dev/v1alpha1"
DISK = "/var/lib/server-disk"
JOURNAL_FILE = "/var/lib/calabash/agent.db"
AGAIN = f"while true; do {FILL}; sleep 0.5; done"
HOLD = f"{FILL}; exec sleep 3600"
GAP_S, EDGE_S = 0.001, 2.0  # as in tests/daemons/test_upgrade.py
WORKLOADS = (
    "daemonset/calabash-agent",
    *(f"deployment/calabash-{name}" for name in ("planner", "admission", "server")),
)
# Kinds of objects that an uninstallation leaves, as documented.
LEFT = {
    "APIService",
    "CustomResourceDefinition",
    "GpuNode",
    "Namespace",
    "PersistentVolumeClaim",
    "Pod",
    "Queue",
    "Tenant",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A pod with a slice, and the memory limit that its programs report continuously; 0: they report it once."""

    limits: dict[str, str]
    memory_mib: int = 0
    annotations: tuple[tuple[str, str], ...] = ()
    containers: int = 1

    def pod(self, name: str) -> Json:
        made = user_pod(name, self.limits, AGAIN if self.memory_mib else HOLD)
        made["metadata"]["annotations"] = dict(self.annotations)
        (main,) = made["spec"]["containers"]
        made["spec"]["containers"] = [{**main, "name": f"c{number}"} for number in range(self.containers)]
        return made


def native(gpus: int = 1, memory: str = "", cores: int = 0) -> dict[str, str]:
    limits = {"calabash.dev/gpus": str(gpus), "calabash.dev/memory": memory, "calabash.dev/cores": str(cores or "")}
    return {name: amount for name, amount in limits.items() if amount}


GANG = (("calabash.dev/gang", "train"), ("calabash.dev/gang-size", "2"))
# In the order of their creation: the second one leaves no card of the four that is free as a whole.
SHAPES = {
    "whole": Shape(native()),
    "three-cards": Shape(native(3, "1Gi", 10), 1024),
    "slice": Shape(native(1, "1Gi", 30), 1024),
    "hami": Shape({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048", "nvidia.com/gpucores": "20"}, 2048),
    "brokered": Shape(native(1, "1Gi", 20), 1024, (("calabash.dev/isolation", "brokered"),)),
    "best-effort": Shape(native(1, "512Mi"), 512),
    "two-containers": Shape(native(1, "512Mi", 10), 512, containers=2),
    "gang-0": Shape(native(1, "1Gi", 10), 1024, GANG),
    "gang-1": Shape(native(1, "1Gi", 10), 1024, GANG),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A cluster of one node on which the older chart is installed, and the archives of both charts."""

    cluster: Cluster
    node: RealNode
    older_chart: Path
    present_chart: Path

    def helm(self, *words: str, values: charts.Manifest | None = None) -> str:
        return charts.helm(*words, values=values, kubeconfig=self.cluster.kubeconfig, timeout_s=400)

    def rolled_out(self, timeout_s: int = 240) -> None:
        for name in WORKLOADS:
            words = ("rollout", "status", name, f"--namespace={NAMESPACE}", f"--timeout={timeout_s}s")
            self.cluster.kubectl(*words, timeout_s=timeout_s + 10)

    def pod(self, name: str) -> Json:
        return self.cluster.api.get(f"{PODS}/{name}")

    def create(self, name: str, shape: Shape) -> None:
        self.cluster.api.create(PODS, shape.pod(name))

    def wait(self, name: str, phase: str = "Running") -> None:
        try:
            self.cluster.wait_for(lambda: self.pod(name)["status"].get("phase") == phase, f"{name}: {phase}", 180)
        except TimeoutError as error:
            error.add_note(self.cluster.kubectl("describe", "pod", name, f"--namespace={SPACE}", check=False))
            raise

    def delete(self, name: str) -> None:
        self.cluster.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        self.cluster.wait_for(lambda: not self.cluster.api.exists(f"{PODS}/{name}"), f"the end of {name}")

    def amounts(self, name: str, container: str) -> list[int]:
        """Return the MiB that each run of a container's program could allocate."""
        said = self.cluster.kubectl("logs", name, f"--container={container}", f"--namespace={SPACE}")
        return [int(line) // MIB for line in said.split() if line.isdigit()]

    def identities(self, names: list[str]) -> dict[str, list[tuple[str, int]]]:
        """Return the ID and the number of restarts of each container of some pods."""
        found = {name: self.pod(name)["status"]["containerStatuses"] for name in names}
        return {name: [(one["containerID"], one["restartCount"]) for one in each] for name, each in found.items()}

    def versions(self) -> set[str]:
        """Return the tags of the product's images that run."""
        pods = self.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        images = {
            c["image"] for pod in pods if "deletionTimestamp" not in pod["metadata"] for c in pod["spec"]["containers"]
        }
        return {image.partition(":")[2] for image in images if "/calabash:" in image}

    def gpu_node(self) -> Json:
        return dict(self.cluster.api.get(f"{GROUP}/gpunodes/{self.node.name}")["status"])

    def ready_condition(self) -> Json:
        return next(one for one in self.gpu_node()["conditions"] if one["type"] == "Ready")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need(node=True)
    need_helm()
    scratch = tmp_path_factory.mktemp("upgraded")
    archive = image_of_the_product(scratch)
    before = older.older_image(archive, scratch / "older.tar")
    older_chart, present_chart = older.chart_archives(scratch)
    flags = ["--enable-aggregator-routing=true", *front_proxy(scratch)]
    with Cluster(lifecycle=True, apiserver=flags) as cluster:
        node = RealNode(cluster)
        cluster.exec_inside("mount", "--make-rshared", "/", beside=node.name)
        state = node.outside(STATE)
        state.parent.mkdir(parents=True)
        assert simctl("create", state, "--gpus", "4xT4", "--seed", 1).returncode == 0
        others = write_archive(scratch / "others.tar", [cuda_image(scratch), scheduler_image(cluster, scratch)])
        for images in (archive, before, others):
            node.import_images(images)
        disk(cluster, node)
        made = Site(cluster=cluster, node=node, older_chart=older_chart, present_chart=present_chart)
        made.helm("install", "calabash", str(older_chart), "--create-namespace", values=values())
        made.rolled_out()
        OperatedCluster(cluster).run("tenant", "create", SPACE)
        label = {"calabash.dev/queue": f"{SPACE}.default"}
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": SPACE, "labels": label}})
        account = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
        cluster.wait_for(lambda: cluster.api.exists(account), "an account")
        cluster.wait_for(lambda: ready(cluster) == {SPACE: "True"}, "the queues of the tenant")
        yield made


def values() -> charts.Manifest:
    repository, _, tag = SCHEDULER.rpartition(":")
    small: dict[str, Any] = {"resources": {"requests": {"cpu": "10m", "memory": "10Mi"}}}
    return {
        "agent": {"simulated": STATE, "useEverySeconds": 1, **small},
        "planner": small,
        "admission": small,
        "server": {"enabled": True, "insecure": True, "storage": {"className": "disk", "size": "1Gi"}, **small},
        "scheduler": {"image": {"repository": repository, "tag": tag}, **small},
    }


def disk(cluster: Cluster, node: RealNode) -> None:
    """Create the volume of the server's database, as a provisioner would."""
    path = node.outside(DISK)
    path.mkdir()
    os.chown(path, 65532, 65532)
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "disk",
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": DISK},
    }
    cluster.api.create("/api/v1/persistentvolumes", {"metadata": {"name": "disk"}, "spec": spec})


def test_chart_is_upgraded_rolled_back_and_uninstalled_under_running_pods(site: Site) -> None:
    names = start_pods(site)
    before = site.identities(names)
    assert site.versions() == {older.VERSION}
    assert site.gpu_node()["agentVersion"] == older.VERSION

    upgrade(site)
    assert site.identities(names) == before, "a container was replaced or restarted"
    require_limits(site, names)
    assert [t["name"] for t in OperatedCluster(site.cluster).json_of("tenant", "list")["items"]] == [SPACE]

    assert site.pod("waits")["spec"]["schedulingGates"], "it waits for the planner of the present version"
    site.delete("whole")
    names.remove("whole")
    del before["whole"]
    site.wait("waits")

    refuse_the_downgrade(site, names)
    assert site.identities(names) == before, "a container was replaced or restarted"
    require_limits(site, names)

    for name in (*names, "waits"):
        site.delete(name)
    require_whole_accounts(site)
    uninstall(site)


def start_pods(site: Site) -> list[str]:
    """Start a pod of each shape, and one that waits; return the names of those that run."""
    for name, shape in SHAPES.items():
        site.create(name, shape)
        if not shape.annotations:
            site.wait(name)
    for name in SHAPES:
        site.wait(name)
    require_limits(site, list(SHAPES))
    site.create("waits", Shape(native()))

    def reason() -> str:
        conditions = site.pod("waits")["status"].get("conditions", [])
        found = {one.get("reason", "") for one in conditions if one["type"] == "PodScheduled"} - {"SchedulingGated"}
        return next(iter(found), "")

    site.cluster.wait_for(reason, "why a pod waits")
    return list(SHAPES)


def require_limits(site: Site, names: list[str]) -> None:
    """Check that each program can still allocate nearly its limit and no more."""
    for name in names:
        shape = SHAPES[name]
        for number in range(shape.containers if shape.memory_mib else 0):
            already = len(site.amounts(name, f"c{number}"))
            site.cluster.wait_for(
                partial(said_more, site, name, number, already), f"more amounts of {name}", 90, every_s=1
            )
            found = site.amounts(name, f"c{number}")
            outside = [(at, amount) for at, amount in enumerate(found) if not within(amount, shape.memory_mib)]
            assert outside == [], (name, len(found), found[0], found[-1])


def said_more(site: Site, name: str, number: int, already: int) -> bool:
    return len(site.amounts(name, f"c{number}")) > already + 1


def upgrade(site: Site) -> None:
    """Upgrade the definitions and the release by the commands of the documentation."""
    present = older.definitions()
    assert stored_definitions(site) != columns(present), "the older definitions differ"
    definitions = site.helm("show", "crds", str(site.present_chart))
    site.cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", "-", text=definitions)
    assert stored_definitions(site) == columns(present)
    site.helm("upgrade", "calabash", str(site.present_chart), "--reset-then-reuse-values")
    site.rolled_out()
    site.cluster.wait_for(lambda: site.versions() == {calabash.__version__}, "the end of the older pods")
    site.cluster.wait_for(lambda: site.gpu_node()["agentVersion"] == calabash.__version__, "the agent's report")
    assert site.ready_condition()["status"] == "True"


def columns(definitions: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the columns of each definition."""
    return {
        name: [column["name"] for version in each for column in version.get("additionalPrinterColumns", ())]
        for name, each in definitions.items()
    }


def stored_definitions(site: Site) -> dict[str, list[str]]:
    found = site.cluster.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    return columns({one["metadata"]["name"]: one["spec"]["versions"] for one in found})


def refuse_the_downgrade(site: Site, names: list[str]) -> None:
    """Return to the older release while the node has a journal of a newer schema, and to the present one."""
    journal = site.node.outside(JOURNAL_FILE)

    def set_schema(number: int) -> None:
        with closing(sqlite3.connect(journal, timeout=30)) as connection, connection:
            connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(number),))

    set_schema(JOURNAL.newest + 1)
    site.helm("rollback", "calabash", "1")
    site.cluster.wait_for(lambda: site.ready_condition()["reason"] == "store_newer", "the refusal to be reported", 180)
    said = site.ready_condition()["message"]
    assert f"schema {JOURNAL.newest + 1}" in said
    assert "hint: use the newer calabash that wrote it" in said
    with pytest.raises(RuntimeError, match="timed out"):
        site.cluster.kubectl(
            "rollout", "status", "daemonset/calabash-agent", f"--namespace={NAMESPACE}", "--timeout=15s"
        )
    require_limits(site, names[:3])
    set_schema(JOURNAL.newest)
    site.helm("rollback", "calabash")
    site.rolled_out()
    site.cluster.wait_for(lambda: site.versions() == {calabash.__version__}, "the end of the older pods")
    site.cluster.wait_for(lambda: site.ready_condition()["status"] == "True", "the node to be ready")
    site.create("later", SHAPES["slice"])
    site.wait("later")
    site.delete("later")


def require_whole_accounts(site: Site) -> None:
    """Check that the usage records of each allocation follow each other from its grant to its end."""
    path = f"sqlite:///{site.node.outside(JOURNAL_FILE)}"

    def all_ended() -> bool:
        with closing(open_store(path)) as store:
            return all(one.ended_at for one in store.allocations(ended=True))

    site.cluster.wait_for(all_ended, "the end of all allocations")
    with closing(open_store(path)) as store:
        records, allocations = store.usage(), {one.id: one for one in store.allocations(ended=True)}
    by_slice = defaultdict(list)
    for record in records:
        by_slice[record.allocation, record.device].append(record)
    assert {allocation for allocation, _ in by_slice} == set(allocations)
    assert len(allocations) >= len(SHAPES) + 2
    for (allocation, _), found in by_slice.items():
        found.sort(key=lambda one: one.from_s)
        assert all(abs(after.from_s - before.to_s) < GAP_S for before, after in pairwise(found)), found
        assert abs(found[0].from_s - allocations[allocation].granted_at) < EDGE_S, found[0]
        assert abs(found[-1].to_s - allocations[allocation].ended_at) < EDGE_S, found[-1]


def uninstall(site: Site) -> None:
    """Uninstall the release, and check that nothing but what is documented is left."""
    cluster, node = site.cluster, site.node
    site.create("forever", Shape(native(5)))  # more cards than there are
    cluster.wait_for(lambda: site.pod("forever")["spec"].get("schedulingGates"), "a pod that waits")
    site.helm("uninstall", "calabash")
    events = cluster.api.get(f"/api/v1/namespaces/{SPACE}/events?fieldSelector=reason=Uninstalled")["items"]
    assert [event["involvedObject"]["name"] for event in events] == ["forever"]
    ours: list[str] = []

    def only_documented() -> bool:
        ours[:] = objects_of_the_product(cluster)
        return {one.partition("/")[0] for one in ours} <= LEFT

    try:
        cluster.wait_for(only_documented, "all objects of the release to be gone", 90, every_s=2)
    except TimeoutError as error:
        error.add_note("\n".join(ours))
        raise
    assert "PersistentVolumeClaim/calabash-server" in ours, "users and invoices are kept"
    assert "Pod/forever" in ours
    (shown,) = cluster.api.get("/api/v1/nodes")["items"]
    assert not [name for name in shown["metadata"].get("labels", {}) if "calabash" in name]
    assert not [taint for taint in shown["spec"].get("taints", ()) if "calabash" in taint["key"]]
    cluster.wait_for(lambda: tokens(cluster) == 0, "the kubelet to offer no device")
    site.delete("forever")
    definitions = site.helm("show", "crds", str(site.present_chart))
    cluster.kubectl("delete", "--filename", "-", "--timeout=60s", text=definitions, timeout_s=90)
    said = cluster.exec_inside(str(Path(sys.executable).with_name("calabash")), "uninstall", "node", beside=node.name)
    assert "/var/lib/calabash: removed" in said
    assert files_of_the_product(site) == []


def objects_of_the_product(cluster: Cluster) -> list[str]:
    """Return all objects of the cluster that have the product's name in their own, in a label or in an annotation."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
    try:
        items = json.loads(cluster.kubectl("get", wanted, "--all-namespaces", "--output=json"))["items"]
    except (RefusedError, RuntimeError):  # a kind has just been removed
        return ["Unknown/list"]
    found = []
    for item in items:
        metadata = item["metadata"]
        words = [metadata["name"], *metadata.get("labels", {}).items(), *metadata.get("annotations", {}).items()]
        if any("calabash" in str(word) for word in words):
            found.append(f"{item['kind']}/{metadata['name']}")
    return sorted(set(found))


def files_of_the_product(site: Site) -> list[str]:
    """Return the files and mounts of the product on the node, without images and logs."""
    kubelet = [f"/var/lib/kubelet/{name}" for name in ("device-plugins", "plugins", "plugins_registry")]
    words = ("find", "/var/lib/calabash", "/run/cdi", *kubelet, "-name", "*calabash*")
    files = site.cluster.exec_inside(*words, beside=site.node.name, check=False).split()
    mounts = site.cluster.exec_inside("cat", "/proc/self/mounts", beside=site.node.name).splitlines()
    return [*files, *(line for line in mounts if "/var/lib/calabash" in line)]
