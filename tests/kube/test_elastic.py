"""Tests of autoscaling a Deployment by the external metric that says how much of their slices its pods use.

API server, aggregation, HorizontalPodAutoscaler and planner are real. The test takes the part of the nodes and their
agents, which report the use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.api import Json
from tests.kube.charts import need_helm, render
from tests.kube.cluster import Cluster
from tests.kube.frontproxy import front_proxy
from tests.kube.hollow import HollowKubelets
from tests.kube.needs import need
from tests.kube.planned import SYSTEM, Planned, devices, planned_pod

from calabash.kubernetes.metrics.run import REGISTERED, SERVICE
from calabash.model.request import GpuRequest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kube" / "elastic.yaml"
PORT = 8444
NODE = "elastic-0"
TEAM = "elastic"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
METRICS = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{TEAM}"
INSTALLED = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret", "APIService"}
SLICE = GpuRequest(memory_mib=4096, core_percent=20)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A control plane with an aggregating API server, and with an autoscaler that acts every second."""
    need()
    need_helm()
    with Cluster(
        apiserver=front_proxy(tmp_path),
        controllers=["--horizontal-pod-autoscaler-sync-period=1s"],
    ) as made_cluster:
        yield made_cluster


def serve_metrics(cluster: Cluster, directory: Path) -> None:
    """Start the metrics server with the rights and the registration of the chart.

    Its Service is an ExternalName for ``localhost``, because the API server of these tests reaches no pod.
    """
    api = cluster.api
    wanted = [m for m in render({"metrics": {"enabled": True}}) if m["kind"] in INSTALLED and ours(m)]
    (registration,) = (m for m in wanted if m["kind"] == "APIService")
    registration["spec"]["service"]["port"] = PORT
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": PORT}]}
    wanted.append(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": SYSTEM}, "spec": service}
    )
    listed = {"apiVersion": "v1", "kind": "List", "items": wanted}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(listed))
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", SERVICE, "-n", SYSTEM).strip()}
    file = directory / "metrics.kubeconfig"
    file.write_text(json.dumps(config))
    program = [str(Path(sys.executable).with_name("calabash")), "serve", "metrics", "--kubeconfig", str(file)]
    cluster.start_program("metrics", [*program, "--listen-port", str(PORT)])

    def available() -> bool:
        found = api.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{REGISTERED}")
        return any(c["type"] == "Available" and c["status"] == "True" for c in found["status"].get("conditions", []))

    cluster.wait_for(available, "the metrics to be served")


def ours(manifest: Json) -> bool:
    return bool(manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "metrics")


def report_usage(cluster: Cluster, percent: int) -> None:
    """Report, as the node's agent would, that every running pod uses this percentage of its slice's compute."""
    running = [pod for pod in cluster.api.get(PODS)["items"] if pod["status"].get("phase") == "Running"]
    told: list[Json] = [
        {
            "pod": f"{TEAM}/{pod['metadata']['name']}",
            "podUid": pod["metadata"]["uid"],
            "container": "server",
            "mode": "vgpu",
            "policy": "fixed",
            "allocation": pod["metadata"]["name"],
            "memoryMib": SLICE.memory_mib,
            "corePercent": 20,
            "coreUsedPercent": 20 * percent // 100,
        }
        for pod in running
    ]
    card, *others = devices(2)
    status = {"devices": [{**card, "slices": told}, *others]}
    cluster.api.patch(f"/apis/calabash.dev/v1alpha1/gpunodes/{NODE}/status", {"status": status})


def example() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the Deployment and the autoscaler of the example, changed for the test.

    The pods have the form that admission gives them, and the autoscaler scales down without waiting.
    """
    deployment, scaler = yaml.safe_load_all(EXAMPLE.read_text())
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    asked = planned_pod("server", SLICE)
    limits = container["resources"]["limits"]
    assert limits == {"calabash.dev/gpus": 1, "calabash.dev/memory": "4Gi", "calabash.dev/cores": 20}
    template["metadata"]["annotations"] = {
        key: text.replace('"main"', '"server"') for key, text in asked["metadata"]["annotations"].items()
    }
    template["spec"] |= {name: asked["spec"][name] for name in ("schedulerName", "schedulingGates")}
    template["spec"]["terminationGracePeriodSeconds"] = 0
    container["resources"]["limits"] = {name: str(amount) for name, amount in limits.items()}
    scaler["spec"]["behavior"]["scaleDown"] = {"stabilizationWindowSeconds": 0}
    return deployment, scaler


def test_slices_that_are_busy_become_more_and_those_that_idle_become_fewer(cluster: Cluster, tmp_path: Path) -> None:
    api = cluster.api
    with Planned(cluster, 1, 2, prefix="elastic") as planned, HollowKubelets(api, prefix="elastic-"):
        planned.make_namespace(TEAM)
        serve_metrics(cluster, tmp_path)
        deployment, scaler = example()
        api.create(f"/apis/apps/v1/namespaces/{TEAM}/deployments", deployment)
        api.create(f"/apis/autoscaling/v2/namespaces/{TEAM}/horizontalpodautoscalers", scaler)

        def running(percent: int, count: int) -> bool:
            pods = [pod for pod in api.get(PODS)["items"] if pod["status"].get("phase") == "Running"]
            report_usage(cluster, percent)
            return len(pods) == count

        def told() -> str:
            return cluster.kubectl("describe", "hpa,pods", "-n", TEAM, check=False)

        try:
            cluster.wait_for(lambda: running(70, 1), "the first replica")
            cluster.wait_for(
                lambda: running(140, 2), "a second replica, for the first uses twice what it should", 60, 0.3
            )
            items = api.get(f"{METRICS}/calabash_slice_use_percent?labelSelector=app%3Delastic")["items"]
            assert [item["value"] for item in items] == ["280"]
            cluster.wait_for(lambda: running(30, 1), "one replica again", 60, 0.3)
        except (TimeoutError, AssertionError) as error:
            error.add_note(told())
            error.add_note(cluster.log("metrics"))
            raise
        assert api.get(f"{METRICS}/calabash_slice_use_percent?labelSelector=app%3Dothers")["items"] == []
        queue = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "default"}}
        api.create("/apis/calabash.dev/v1alpha1/queues", queue)

        def of_queue() -> list[str]:
            path = f"{METRICS}/calabash_queue_running_pods?labelSelector=queue%3Ddefault"
            return [item["value"] for item in api.get(path)["items"]]

        cluster.wait_for(lambda: of_queue() == ["1"], "what the planner tells of the queue")
