"""Tests of the installed product: the image of ``make image`` and the chart, on a real kubelet and containerd.

All components run in the cluster, from the image. The environment variable ``CALABASH_IMAGE`` names an archive of the
image to use; without it, the image is built.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kube import charts
from tests.kube.api import Json, RefusedError
from tests.kube.charts import CHART, NAMESPACE, need_helm
from tests.kube.cluster import Cluster
from tests.kube.frontproxy import front_proxy
from tests.kube.gpu_node import CUDA, cuda_image
from tests.kube.images import Image, layer_of, write_archive
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.operated import OperatedCluster
from tests.native.simnode import simctl
from tools import image
from tools.debian import PackagesError

from calabash.kubernetes.objects.names import STARTUP_TAINT

pytestmark = pytest.mark.slow

MIB = 1 << 20
STATE = "/var/lib/simulated/node.state"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kube"
SCHEDULER = "localhost/kube-scheduler:1"
PODS = "/api/v1/namespaces/tenant/pods"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one real node with simulated cards, on which the chart is installed and everything is ready."""
    need(node=True)
    need_helm()
    scratch = tmp_path_factory.mktemp("product")
    archive = image_of_the_product(scratch)
    # There is no kube-proxy: the API server asks the webhooks' Service by its endpoints.
    flags = ["--enable-aggregator-routing=true", *front_proxy(scratch)]
    with Cluster(lifecycle=True, apiserver=flags) as cluster:
        node = RealNode(cluster)
        # As on a machine started by systemd: mounts of the agent are visible on the node.
        cluster.exec_inside("mount", "--make-rshared", "/", beside=node.name)
        # As a node pool would register it: no other pod comes onto the node until the agent has removed this taint.
        cluster.kubectl("taint", "nodes", node.name, f"{STARTUP_TAINT}:NoSchedule")
        state = node.outside(STATE)
        state.parent.mkdir(parents=True)
        assert simctl("create", state, "--gpus", "2xT4", "--seed", 1).returncode == 0
        node.import_images(archive)
        node.import_images(
            write_archive(scratch / "more.tar", [cuda_image(scratch), scheduler_image(cluster, scratch)])
        )
        repository, _, tag = SCHEDULER.rpartition(":")
        small: dict[str, Any] = {"resources": {"requests": {"cpu": "10m", "memory": "10Mi"}}}
        values = {
            "agent": {"simulated": STATE, "useEverySeconds": 1, **small},
            "planner": small,
            "admission": small,
            "metrics": {"enabled": True, **small},
            "server": {"enabled": True, "insecure": True, "storage": {"ephemeral": True}, **small},
            "scheduler": {"image": {"repository": repository, "tag": tag}, **small},
        }
        charts.helm(
            "install", "calabash", str(CHART), "--create-namespace", values=values, kubeconfig=cluster.kubeconfig
        )
        deployments = [f"deployment/calabash-{name}" for name in ("planner", "admission", "metrics", "server")]
        for name in ("daemonset/calabash-agent", *deployments):
            cluster.kubectl("rollout", "status", name, f"--namespace={NAMESPACE}", "--timeout=150s", timeout_s=160)
        yield cluster


def image_of_the_product(scratch: Path) -> Path:
    """Return the archive of the product's image; build it if ``CALABASH_IMAGE`` names none.

    If packages for it cannot be fetched, the test is skipped, or fails if ``CALABASH_KUBE=required``, as in CI.
    """
    made = os.environ.get("CALABASH_IMAGE")
    if made:
        return Path(made)
    try:
        return image.build(scratch).archive
    except PackagesError as error:
        if os.environ.get("CALABASH_KUBE") == "required":
            pytest.fail(f"no image of the product: {error}")
        pytest.skip(f"no image of the product: {error}")


def scheduler_image(cluster: Cluster, scratch: Path) -> Image:
    """Return an image with the unmodified kube-scheduler."""
    directory = scratch / "scheduler" / "usr" / "local" / "bin"
    directory.mkdir(parents=True)
    shutil.copy(cluster.programs / "kube", directory / "kube-scheduler")
    return Image(SCHEDULER, (layer_of(scratch / "scheduler"),), {"Env": ["PATH=/usr/local/bin"]})


def test_pod_of_a_tenant_runs_with_its_slice_and_not_more(installed: Cluster) -> None:
    device = installed.wait_for(lambda: devices(installed), "the node to tell of its devices")[0]
    assert device["health"] == "healthy"
    installed.wait_for(lambda: tokens(installed) > 0, "the kubelet to offer what the agent has")
    limits = {"calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "30"}
    made = run(
        installed, "slice", ["load", "fill", "2"], limits
    )  # takes memory until it is refused, and prints how much
    assert made["spec"]["schedulerName"] == "calabash"
    assert made["metadata"]["annotations"]["calabash.dev/dialect"] == "native", "the API server asked admission"
    said = ended(installed, "slice")
    assert 824 <= int(said.split()[-1]) // MIB <= 1024


def test_pod_with_a_worker_continues_when_the_agent_of_its_node_is_replaced(installed: Cluster) -> None:
    """The worker does not end with the agent's container, because it is in the control group of the served pod."""
    limits = {"calabash.dev/memory": "1Gi", "calabash.dev/cores": "30"}
    until_told = "load wait < /dev/null; while [ ! -e /tmp/go ]; do sleep 0.1; done; exec load fill 2"
    run(installed, "brokered", ["sh", "-c", until_told], limits, annotations={"calabash.dev/isolation": "brokered"})
    logs = ["logs", "--namespace=tenant", "brokered"]
    installed.wait_for(lambda: "ready" in installed.kubectl(*logs, check=False), "its first program", 60)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    agents = f"{pods}?labelSelector=app.kubernetes.io/component=agent"
    (before,) = installed.api.get(agents)["items"]
    name = before["metadata"]["name"]
    installed.api.delete(f"{pods}/{name}", {"gracePeriodSeconds": 1})

    def another() -> bool:
        found = {pod["metadata"]["name"]: pod["status"] for pod in installed.api.get(agents)["items"]}
        statuses = [one for status in found.values() for one in status.get("containerStatuses", ())]
        return name not in found and len(statuses) == 2 and all(one["ready"] for one in statuses)

    installed.wait_for(another, "another agent", 90)
    installed.kubectl("exec", "--namespace=tenant", "brokered", "--", "touch", "/tmp/go")
    assert 824 <= int(ended(installed, "brokered").split()[-1]) // MIB <= 1024


def test_what_nobody_can_have_is_refused_when_the_pod_is_made(installed: Cluster) -> None:
    with pytest.raises(RefusedError, match=r'"pods.calabash.dev" denied the request: .*cores'):
        run(installed, "nonsense", ["true"], {"calabash.dev/gpus": "1", "calabash.dev/cores": "300"})


def test_pod_of_a_tenant_cannot_connect_to_the_planner(installed: Cluster) -> None:
    """The pod reaches the planner's pod, because nothing enforces NetworkPolicies in this cluster.

    It cannot connect to the planner even so, because the planner listens on the loopback interface of its pod only.
    """
    installed.wait_for(lambda: len(planners(installed)) == 2, "the addresses of both planners")
    asked = [(address, port) for address in planners(installed) for port in (10259, 7070)]
    script = f"import socket; print([socket.socket().connect_ex(a) for a in {asked}])"
    run(installed, "curious", ["python3", "-I", "-S", "-c", script], {}, image=image.REFERENCE)
    assert json.loads(ended(installed, "curious")) == [0, errno.ECONNREFUSED] * 2


def planners(cluster: Cluster) -> list[str]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=planner"
    found = [pod["status"].get("podIP", "") for pod in cluster.api.get(path)["items"]]
    return [address for address in found if address]


def test_api_server_serves_the_use_of_a_slice_as_an_external_metric(installed: Cluster) -> None:
    path = "/apis/external.metrics.k8s.io/v1beta1"
    assert "calabash_slice_memory_percent" in [r["name"] for r in installed.api.get(path)["resources"]]
    limits = {"calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "30"}
    run(installed, "metered", ["load", "tenant", "600", "1000000"], limits, labels={"app": "metered"})

    def used() -> list[str]:
        asked = f"{path}/namespaces/tenant/calabash_slice_memory_percent?labelSelector=app%3Dmetered"
        return [item["value"] for item in installed.api.get(asked)["items"] if item["value"] != "0"]

    try:
        (percent,) = installed.wait_for(used, "the memory that the pod uses of its slice", 60)
    except TimeoutError as error:
        error.add_note(conditions_and_logs(installed, "metered"))
        raise
    assert percent.endswith("m"), "thousandths"
    assert 50_000 < int(percent[:-1]) <= 100_000
    installed.api.delete(f"{PODS}/metered", {"gracePeriodSeconds": 0})


def test_two_tenants_share_the_cluster_and_each_sees_its_own(installed: Cluster) -> None:
    operated = OperatedCluster(installed)
    installed.kubectl("apply", "--filename", str(EXAMPLES / "tenant.yaml"))
    operated.run("tenant", "create", "speech", "--guarantee", "1")
    label = {"calabash.dev/queue": "speech.default"}
    installed.api.create("/api/v1/namespaces", {"metadata": {"name": "speech", "labels": label}})
    installed.wait_for(lambda: ready(installed) == {"vision": "True", "speech": "True"}, "both tenants' queues")
    assert {t["name"]: t["guarantee"] for t in operated.json_of("tenant", "list")["items"]} == {
        "vision": 1.0,
        "speech": 1.0,
    }
    tokens = {tenant: operated.member(f"{tenant}-member", tenant) for tenant in ("vision", "speech")}

    def shown(tenant: str) -> dict[str, tuple[str, str]]:
        found = operated.list("/v1/allocations", tokens[tenant])
        return {a["command"][0]: (a["state"], a["reason"]) for a in found}

    whole, computes = {"calabash.dev/gpus": "1"}, ["load", "tenant", "600", "1000000"]
    run(installed, "mine", computes, whole, namespace="vision-train")
    installed.wait_for(lambda: shown("vision") == {"vision-train/mine": ("running", "")}, "the first pod to be seen")
    run(installed, "more", computes, whole, namespace="vision-train")
    run(installed, "theirs", computes, whole, namespace="speech")
    installed.wait_for(lambda: shown("speech") == {"speech/theirs": ("running", "")}, "the other tenant's pod")
    held = {"vision-train/mine": ("running", ""), "vision-train/more": ("pending", "queue_over_limit")}
    installed.wait_for(lambda: shown("vision") == held, "the quota to be said")
    assert {q["queue"] for q in operated.list("/v1/quota", tokens["vision"])} == {
        "vision", "vision/default", "vision/train",
    }  # fmt: skip
    with pytest.raises(RefusedError, match=r"queue vision\.train is not allowed in namespace speech"):
        run(installed, "thief", computes, whole, namespace="speech", labels={"calabash.dev/queue": "vision.train"})
    for namespace, names in (("vision-train", ("mine", "more")), ("speech", ("theirs",))):
        for name in names:
            installed.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})


def ready(cluster: Cluster) -> dict[str, str]:
    """Return the status of the condition ``Ready`` of each tenant, by name; "" if the tenant has no such condition."""
    tenants = cluster.api.get("/apis/calabash.dev/v1alpha1/tenants")["items"]
    conditions = {t["metadata"]["name"]: t.get("status", {}).get("conditions", []) for t in tenants}
    return {name: next((c["status"] for c in found if c["type"] == "Ready"), "") for name, found in conditions.items()}


def test_console_of_the_cluster_answers_and_requires_a_login(installed: Cluster) -> None:
    operated = OperatedCluster(installed)
    status, text = operated.ask("/")
    assert status == 200
    assert "data-shell" in text, "a page without data, which asks for a login"
    status, text = operated.ask("/v1/allocations")
    assert (status, json.loads(text)["reason"]) == (401, "not_authenticated")
    assert "http" in operated.run("login", "--link")


def run(
    cluster: Cluster,
    name: str,
    command: list[str],
    limits: dict[str, str],
    *,
    image: str = CUDA,
    labels: dict[str, str] | None = None,
    namespace: str = "tenant",
    annotations: dict[str, str] | None = None,
) -> Json:
    """Create a pod as a user of a tenant writes it; return the pod that the API server stored."""
    if not cluster.api.exists(f"/api/v1/namespaces/{namespace}"):
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    cluster.wait_for(lambda: cluster.api.exists(account), "an account")
    container = {"name": "main", "image": image, "command": command, "resources": {"limits": limits}}
    spec = {"restartPolicy": "Never", "containers": [container]}
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return cluster.api.create(
        f"/api/v1/namespaces/{namespace}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    )


def ended(cluster: Cluster, name: str) -> str:
    """Wait until the pod has succeeded, and return its output."""

    def phase() -> str:
        found: str = cluster.api.get(f"{PODS}/{name}")["status"].get("phase", "")
        return found

    try:
        cluster.wait_for(lambda: phase() in {"Succeeded", "Failed"}, "the pod to end", 60)
    except TimeoutError as error:
        error.add_note(conditions_and_logs(cluster, name))
        raise
    said = cluster.kubectl("logs", "--namespace=tenant", name)
    assert phase() == "Succeeded", said
    return said


def conditions_and_logs(cluster: Cluster, name: str) -> str:
    """Return the conditions of a waiting pod and the logs of the components."""
    words = ["describe", "pod", name, "--namespace=tenant"]
    logs = ["logs", f"--namespace={NAMESPACE}", "--prefix", "--tail=20", "--all-containers", "--selector"]
    said = [f"app.kubernetes.io/component={component}" for component in ("planner", "agent")]
    return "\n".join(cluster.kubectl(*asked, check=False) for asked in (words, *([*logs, one] for one in said)))


def devices(cluster: Cluster) -> list[dict[str, Any]]:
    nodes = cluster.api.get("/apis/calabash.dev/v1alpha1/gpunodes")["items"]
    return [device for node in nodes for device in node.get("status", {}).get("devices", [])]


def tokens(cluster: Cluster) -> int:
    (node,) = cluster.api.get("/api/v1/nodes")["items"]
    return int(node["status"]["allocatable"].get("calabash.dev/gpus", "0"))


def test_no_component_asks_for_what_it_may_not(installed: Cluster) -> None:
    """Search the logs of the components for denied requests: a component logs a denied request and continues."""
    words = [
        "logs",
        f"--namespace={NAMESPACE}",
        "--all-containers",
        "--tail=-1",
        "--selector=app.kubernetes.io/name=calabash",
    ]
    assert [line for line in installed.kubectl(*words).splitlines() if "forbidden" in line.lower()] == []


def test_agent_has_removed_the_startup_taint_from_its_node(installed: Cluster) -> None:
    (node,) = installed.api.get("/api/v1/nodes")["items"]
    assert STARTUP_TAINT not in [taint["key"] for taint in node["spec"].get("taints", [])]


def test_who_needs_nothing_of_the_node_runs_as_nobody(installed: Cluster) -> None:
    for component in ("admission", "planner", "metrics", "server"):
        said = installed.kubectl(
            "exec",
            f"--namespace={NAMESPACE}",
            f"deployment/calabash-{component}",
            "-c",
            component,
            "--",
            "python3",
            "-I",
            "-c",
            "import os; print(os.getuid(), os.access('/', os.W_OK))",
        )
        assert said.split() == [str(image.USER), "False"]
