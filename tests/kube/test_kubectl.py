"""Tests of ``kubectl calabash`` on a real API server, with the rights of the chart's roles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.contract.crds import install
from tests.kube.charts import need_helm, one, render
from tests.kube.cluster import Cluster
from tests.kube.fakes import remove_nodes
from tests.kube.hollow import HollowKubelets
from tests.kube.planned import devices, planned_pod

from calabash.adapters.kube import load_client
from calabash.model.request import GpuRequest

TEAM = "drained"
NODE = "drained-0"
GPU_NODES = "/apis/calabash.dev/v1alpha1/gpunodes"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ACCOUNTS = {"viewer": "view", "drainer": "calabash-drain"}


@pytest.fixture
def there(control_plane: Cluster) -> Iterator[Cluster]:
    """A cluster with a node with one device, the chart's roles, and a service account for each role."""
    need_helm()
    api = control_plane.api
    install(load_client(control_plane.kubeconfig))
    manifests = render()
    with ExitStack() as stack:
        control_plane.fake_nodes(1, prefix="drained")
        stack.callback(remove_nodes, api, [NODE])
        api.create(GPU_NODES, {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": NODE}})
        stack.callback(api.delete, f"{GPU_NODES}/{NODE}")
        api.create("/api/v1/namespaces", {"metadata": {"name": TEAM}})
        stack.callback(api.delete, f"/api/v1/namespaces/{TEAM}")
        for name in ("calabash-view", "calabash-drain"):
            api.create(ROLES, one(manifests, "ClusterRole", name))
            stack.callback(api.delete, f"{ROLES}/{name}")
        for account, role in ACCOUNTS.items():
            api.create(f"/api/v1/namespaces/{TEAM}/serviceaccounts", {"metadata": {"name": account}})
            subject = {"kind": "ServiceAccount", "name": account, "namespace": TEAM}
            bound = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
            api.create(BINDINGS, {"metadata": {"name": f"test-{account}"}, "roleRef": bound, "subjects": [subject]})
            stack.callback(api.delete, f"{BINDINGS}/test-{account}")
        default = f"/api/v1/namespaces/{TEAM}/serviceaccounts/default"
        control_plane.wait_for(lambda: api.exists(default), "the account of a new namespace")
        stack.enter_context(HollowKubelets(api, prefix="drained-"))
        yield control_plane


def command(cluster: Cluster, account: str, directory: Path, *words: str) -> subprocess.Popen[str]:
    """Run ``kubectl calabash`` with the rights of an account."""
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", account, "-n", TEAM).strip()}
    file = directory / f"{account}.kubeconfig"
    file.write_text(json.dumps(config))
    path = f"{Path(sys.executable).parent}:{cluster.programs}:{os.environ['PATH']}"
    return subprocess.Popen(
        [str(cluster.programs / "kubectl"), "calabash", *words],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report_status(cluster: Cluster, *slices: dict[str, Any]) -> None:
    """Write the status that the node's agent would report."""
    (card,) = devices(1)
    cluster.api.patch(f"{GPU_NODES}/{NODE}/status", {"status": {"devices": [{**card, "slices": list(slices)}]}})


def test_node_is_drained_as_role_and_budget_allow_and_shown_to_a_viewer(there: Cluster, tmp_path: Path) -> None:
    api = there.api
    pods = f"/api/v1/namespaces/{TEAM}/pods"
    body = planned_pod("holds", GpuRequest(memory_mib=8192, core_percent=30), nodeName=NODE)
    del body["spec"]["schedulingGates"]
    body["metadata"]["labels"] = {"app": "web"}
    made = api.create(pods, body)
    held = {"pod": f"{TEAM}/holds", "podUid": made["metadata"]["uid"], "container": "main", "mode": "vgpu"}
    report_status(
        there,
        {**held, "policy": "fixed", "allocation": "a", "memoryMib": 8192, "corePercent": 30, "coreUsedPercent": 20},
    )
    budgets = f"/apis/policy/v1/namespaces/{TEAM}/poddisruptionbudgets"
    api.create(
        budgets, {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}
    )
    there.wait_for(lambda: api.get(f"{pods}/holds")["status"].get("phase") == "Running", "the pod to run")
    looking = [
        command(there, "viewer", tmp_path, *words) for words in (("top", "-A"), ("queue",), ("drain", NODE, "--force"))
    ]
    (top, _), (queue, _), (_, refused) = (looked.communicate(timeout=60) for looked in looking)
    assert [looked.returncode for looked in looking] == [0, 0, 4], refused
    assert "██········ 20%" in top
    assert queue.splitlines()[1].split()[0] == "default"
    assert "or ask an administrator for the ClusterRole view" in refused

    kept = command(there, "drainer", tmp_path, "drain", NODE, "--force", "--timeout", "1s")
    _, said = kept.communicate(timeout=60)
    assert kept.returncode == 6, said
    assert f"{TEAM}/holds cannot be evicted now: " in said
    assert " web " in said
    assert api.get(f"{GPU_NODES}/{NODE}")["spec"] == {"unschedulable": True}

    api.delete(f"{budgets}/web")
    emptying = command(there, "drainer", tmp_path, "drain", NODE, "--force", "--timeout", "60s")
    there.wait_for(lambda: not api.exists(f"{pods}/holds"), "the pod to leave")
    report_status(there)
    out, said = emptying.communicate(timeout=60)
    assert emptying.returncode == 0, said
    assert out.startswith(f"{NODE}: 1 pod evicted")
    undone = command(there, "drainer", tmp_path, "drain", NODE, "--undo")
    assert undone.communicate(timeout=60)[1] == ""
    assert not api.get(f"{GPU_NODES}/{NODE}").get("spec", {}).get("unschedulable")
