"""Tests of the uninstallation of the chart by Helm on a real API server, and of its cleanup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.kube import charts
from tests.kube.charts import NAMESPACE, need_helm, one, render
from tests.kube.cluster import Cluster
from tests.kube.test_chart import parsed_by_the_product
from tests.kube.test_chart_installed import as_account, client_of, helm

from calabash.cli.commands import cli
from calabash.kubernetes.cleanup import clean_up
from calabash.kubernetes.objects.names import NETWORK_FINALIZER, PLAN_GATE

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PODS = "/api/v1/namespaces/default/pods"
VPCS = "/apis/calabash.dev/v1alpha1/vpcs"
HOOK = "helm.sh/hook"


def lease(name: str) -> dict[str, Any]:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}


def resource_slice(name: str, driver: str) -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "nodeName": "node", "devices": []}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def gated_pod(name: str, *gates: str) -> dict[str, Any]:
    container = {"name": "main", "image": "localhost/busybox:1"}
    spec = {"containers": [container], "schedulingGates": [{"name": gate} for gate in gates], "schedulerName": "nobody"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def names(cluster: Cluster, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in cluster.api.get(path)["items"]}


@pytest.fixture(scope="module")
def uninstalled(own_control_plane: Cluster) -> Cluster:
    """A cluster after ``helm uninstall``, with objects that components have left and the rights of the hook's Job."""
    need_helm()
    cluster = own_control_plane
    cluster.fake_nodes(1)
    helm(cluster, "install", "--create-namespace")
    for name in ("calabash-planner", "calabash-planner-a", "calabash-scheduler", "calabash-server", "of-another"):
        cluster.api.create(LEASES, lease(name))
    for name, driver in (("ours", "calabash.dev"), ("theirs", "gpu.example.com")):
        cluster.api.create(SLICES, resource_slice(name, driver))
    vpc = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Vpc", "spec": {"cidrs": ["10.0.0.0/16"]}}
    for name, finalizers in (("deleted", [NETWORK_FINALIZER]), ("kept", [NETWORK_FINALIZER, "example.com/theirs"])):
        cluster.api.create(VPCS, {**vpc, "metadata": {"name": name, "finalizers": finalizers}})
    cluster.api.delete(f"{VPCS}/deleted")
    # Helm waits for the Job of the hook, and no node of this cluster runs it.
    charts.helm("uninstall", "calabash", "--no-hooks", kubeconfig=cluster.kubeconfig)
    for name, gates in (("ours", [PLAN_GATE]), ("both", [PLAN_GATE, "example.com/x"]), ("theirs", ["example.com/x"])):
        cluster.api.create(PODS, gated_pod(name, *gates))
    rights = [m for m in render() if HOOK in m["metadata"].get("annotations", {}) and m["kind"] != "Job"]
    assert {m["kind"] for m in rights} == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    }
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(rights))
    return cluster


def test_job_of_the_cleanup_runs_after_the_deletion_with_the_rights_of_its_account() -> None:
    need_helm()
    manifests = render()
    job = one(manifests, "Job", "calabash-cleanup")
    assert job["metadata"]["annotations"][HOOK] == "post-delete"
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert parsed_by_the_product("uninstall cluster", container["args"])["namespace"] == NAMESPACE
    assert spec["serviceAccountName"] == one(manifests, "ServiceAccount", "calabash-cleanup")["metadata"]["name"]
    weights = {
        m["kind"]: int(m["metadata"]["annotations"]["helm.sh/hook-weight"])
        for m in manifests
        if HOOK in m["metadata"].get("annotations", {})
    }
    assert weights.pop("Job") > max(weights.values())
    assert not [m for m in render({"cleanup": {"enabled": False}}) if HOOK in m["metadata"].get("annotations", {})]


def test_cleanup_removes_what_components_left_and_lists_waiting_pods(uninstalled: Cluster, tmp_path: Path) -> None:
    cluster = uninstalled
    _, token = as_account(cluster, "calabash-cleanup")
    client = client_of(cluster, token, tmp_path)
    done = clean_up(client, NAMESPACE)
    assert done.failures == []
    assert (done.leases, done.slices, done.finalizers) == (4, 1, 2)
    assert sorted(done.waiting) == ["default/both", "default/ours"]
    assert names(cluster, LEASES) == {"of-another"}
    assert names(cluster, SLICES) == {"theirs"}
    assert names(cluster, VPCS) == {"kept"}, "a deleted object is gone, one that an administrator keeps is not"
    assert cluster.api.get(f"{VPCS}/kept")["metadata"]["finalizers"] == ["example.com/theirs"]
    events = cluster.api.get("/api/v1/namespaces/default/events?fieldSelector=reason=Uninstalled")["items"]
    assert {event["involvedObject"]["name"] for event in events} == {"both", "ours"}
    assert all("hint: delete the pod, or install calabash again" in event["message"] for event in events)
    again = clean_up(client, NAMESPACE)
    assert (again.leases, again.slices, again.finalizers, again.failures) == (0, 0, 0, [])
    assert sorted(again.waiting) == sorted(done.waiting)


def test_definitions_can_be_deleted_after_the_cleanup(uninstalled: Cluster, tmp_path: Path) -> None:
    _, token = as_account(uninstalled, "calabash-cleanup")
    clean_up(client_of(uninstalled, token, tmp_path), NAMESPACE)
    uninstalled.kubectl("patch", "vpcs", "kept", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    # If the API server's finalizer misses a definition that changes meanwhile, it looks again within five minutes.
    uninstalled.kubectl("delete", "-f", str(charts.CHART / "crds"), "--timeout=400s", timeout_s=420)


def test_command_of_the_cleanup_says_what_it_did_and_fails_where_it_may_not(
    uninstalled: Cluster, tmp_path: Path
) -> None:
    said = CliRunner().invoke(
        cli, ["uninstall", "cluster", "--kubeconfig", str(uninstalled.kubeconfig), "--namespace", NAMESPACE]
    )
    assert said.exit_code == 0, said.output
    assert "pods waiting at the scheduling gate: 2\n" in said.output
    assert "hint: delete these pods" in said.output
    token = uninstalled.kubectl("create", "token", "default").strip()
    refused = clean_up(client_of(uninstalled, token, tmp_path), NAMESPACE)
    assert [failure.partition(":")[0] for failure in refused.failures] == [
        "leases",
        "resource slices",
        "waiting pods",
    ]
