"""Tests of the installed chart on a real API server.

The API server accepts all objects, service accounts have only the listed rights, and the admission policies hold.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube import charts
from tests.kube.api import Api, RefusedError
from tests.kube.charts import CHART, NAMESPACE, need_helm, one, render
from tests.kube.cluster import Cluster
from tests.unit.platform.networks.people import pool_networks

from calabash.adapters.kube import EvictedAs, KubeClient, KubeError, Mirror, load_client
from calabash.adapters.kube.objects.core import NAMESPACE as NAMESPACES
from calabash.adapters.kube.objects.core import POD
from calabash.adapters.store import open_store
from calabash.kubernetes.admission.claim_pods import look_up
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.dialects.pod import AskingClaim
from calabash.kubernetes.gangs.table import read_kinds, table_with
from calabash.kubernetes.node_plugin.reports.node_events import NodeEvents
from calabash.kubernetes.node_plugin.reports.taint import StartupTaint
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.apply.api_writes import ApiWrites
from calabash.kubernetes.planner.service import PlannerService, PlannerSettings
from calabash.kubernetes.planner.state.facts import Report
from calabash.kubernetes.server.network_reconciler import KubeNetworkKeeper
from calabash.kubernetes.serving_certificates.keeper import CertificateKeeper
from calabash.model.errors import CalabashError, Reason

PODS = "/api/v1/namespaces/{}/pods"
NODES = "/api/v1/nodes"
GPU_NODES = "/apis/calabash.dev/v1alpha1/gpunodes"
APPLY = "?fieldManager=test&force=true"

NETWORK_OBJECTS = (
    "dedicatedlines",
    "dnsrecords",
    "eips",
    "loadbalancers",
    "natrules",
    "networkgateways",
    "networkroutes",
    "peerings",
    "ports",
    "qospolicies",
    "securitygroups",
    "serviceendpoints",
    "subnets",
    "uplinks",
    "vpcs",
)
# All permissions of each component: {(group, resource): verbs}, with ``resource=name`` if a rule is for one object.
MAY: Mapping[str, Mapping[tuple[str, str], set[str]]] = {
    "calabash-agent": {
        ("", "pods"): {"get", "list", "watch"},
        ("", "nodes"): {"get", "patch"},
        ("calabash.dev", "gpunodes"): {"get", "list", "watch", "create", "patch"},
        ("calabash.dev", "gpunodes/status"): {"patch"},
        ("resource.k8s.io", "resourceslices"): {"get", "list", "watch", "create", "patch", "delete"},
        ("resource.k8s.io", "resourceclaims"): {"get"},
        ("resource.k8s.io", "resourceclaims/status"): {"patch"},
        ("resource.k8s.io", "resourceclaims/driver=calabash.dev"): {"associated-node:patch"},
    },
    "calabash-planner": {
        ("", "pods"): {"get", "list", "watch", "patch"},
        ("", "pods/status"): {"patch"},
        ("", "pods/binding"): {"create"},
        ("", "pods/eviction"): {"create"},
        ("", "nodes"): {"get", "list", "watch"},
        ("", "namespaces"): {"get", "list", "watch"},
        ("", "events"): {"get", "create", "patch"},
        ("calabash.dev", "gpunodes"): {"get", "list", "watch"},
        ("calabash.dev", "queues"): {"get", "list", "watch"},
        ("calabash.dev", "queues/status"): {"patch"},
        ("policy", "poddisruptionbudgets"): {"get", "list", "watch"},
        ("resource.k8s.io", "resourceclaims"): {"get", "list", "watch"},
        ("resource.k8s.io", "deviceclasses"): {"get", "list", "watch"},
        ("scheduling.k8s.io", "podgroups"): {"get", "list", "watch"},
        ("scheduling.x-k8s.io", "podgroups"): {"get", "list", "watch"},
        ("scheduling.volcano.sh", "podgroups"): {"get", "list", "watch"},
        ("coordination.k8s.io", "leases"): {"create", "list"},
        ("coordination.k8s.io", "leases=calabash-planner"): {"get", "patch", "update"},
        ("coordination.k8s.io", "leases=calabash-scheduler"): {"get", "patch", "update"},
    },
    "calabash-admission": {
        ("", "namespaces"): {"get", "list", "watch"},
        ("calabash.dev", "queues"): {"list", "watch"},
        ("resource.k8s.io", "resourceclaims"): {"get"},
        ("resource.k8s.io", "resourceclaimtemplates"): {"get"},
        ("resource.k8s.io", "deviceclasses"): {"list"},
        **{(kind.group, kind.plural): {"get"} for kind in read_kinds(table_with()).values()},
        ("", "secrets=calabash-admission-tls"): {"get", "patch"},
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations=calabash-admission"): {"get", "patch"},
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations=calabash-admission"): {"get", "patch"},
    },
    "calabash-server": {
        ("", "pods"): {"get", "list", "watch"},
        ("", "namespaces"): {"get", "list", "watch"},
        ("", "secrets=calabash-usage-tls"): {"get", "patch"},
        ("", "configmaps=calabash-usage-ca"): {"get", "patch"},
        ("authentication.k8s.io", "tokenreviews"): {"create"},
        ("calabash.dev", "gpunodes"): {"list", "watch", "patch"},
        ("calabash.dev", "queues"): {"list", "watch", "create", "patch", "delete"},
        ("calabash.dev", "tenants"): {"list", "watch", "create", "patch", "delete"},
        ("calabash.dev", "tenants/status"): {"patch"},
        **{("calabash.dev", plural): {"list", "watch", "patch"} for plural in NETWORK_OBJECTS},
        **{("calabash.dev", f"{plural}/status"): {"patch"} for plural in NETWORK_OBJECTS},
        ("coordination.k8s.io", "leases"): {"create"},
        ("coordination.k8s.io", "leases=calabash-server"): {"get", "patch"},
    },
}
# Further permissions, from roles of the cluster itself: those of the kube-scheduler beside the planner.
BESIDES = {"calabash-planner": ("system:kube-scheduler", "system:volume-scheduler")}


@pytest.fixture(scope="module")
def installed(own_control_plane: Cluster) -> Cluster:
    """A control plane on which Helm has installed the chart, with two fake nodes."""
    need_helm()
    own_control_plane.fake_nodes(2)
    helm(own_control_plane, "install", "--create-namespace")
    own_control_plane.wait_for(lambda: _policies_hold(own_control_plane), "the admission policies")
    return own_control_plane


def _policies_hold(cluster: Cluster) -> bool:
    """Return True if the API server already enforces the chart's policies.

    It compiles them a moment after they were created.
    """
    api, _ = agent_on(cluster, "fake-0")
    other = {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "fake-1"}}
    try:
        api.patch(f"{GPU_NODES}/fake-1{APPLY}&dryRun=All", other, "apply")
    except RefusedError as error:
        return "the agent of node fake-0 may not write" in str(error)
    return False


SERVER = {"server": {"enabled": True, "storage": {"ephemeral": True}}}


def helm(cluster: Cluster, verb: str, *words: str, values: charts.Manifest | None = None) -> None:
    charts.helm(
        verb, "calabash", str(CHART), *words, values={**SERVER, **(values or {})}, kubeconfig=cluster.kubeconfig
    )


def as_account(cluster: Cluster, account: str, *bound: str) -> tuple[Api, str]:
    """Return a client that uses a new token of a service account, and the token; ``bound`` are options of kubectl."""
    token = cluster.kubectl("create", "token", account, f"--namespace={NAMESPACE}", *bound).strip()
    return Api(cluster.secrets.server, cluster.secrets.authority, token), token


def client_of(cluster: Cluster, token: str, directory: Path) -> KubeClient:
    """Return a client of the product that uses the token; ``directory`` is for its kubeconfig."""
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return load_client(str(path))


def agent_pod(cluster: Cluster, node: str) -> Mapping[str, Any]:
    """Return the pod of the agent on a node, which the DaemonSet has created."""

    def found() -> Mapping[str, Any] | None:
        pods = cluster.api.get(f"{PODS.format(NAMESPACE)}?labelSelector=app.kubernetes.io/component=agent")["items"]
        return next((pod for pod in pods if pod["spec"].get("nodeName") == node), None)

    pod = cluster.wait_for(found, f"the agent's pod on {node}")
    assert pod is not None
    return pod


def agent_on(cluster: Cluster, node: str) -> tuple[Api, str]:
    metadata = agent_pod(cluster, node)["metadata"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={metadata['name']}")
    return as_account(cluster, "calabash-agent", *bound, f"--bound-object-uid={metadata['uid']}")


def pod(name: str, *, limits: Mapping[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "localhost/busybox:1", "resources": {"limits": limits or {}}}
    spec = {"containers": [container], "schedulerName": "nobody"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def namespace(cluster: Cluster, name: str, *, admission: str = "", level: str = "privileged") -> str:
    """Create a namespace in which pods can be created; return its name."""
    labels = {
        "pod-security.kubernetes.io/enforce": level,
        **({"calabash.dev/admission": admission} if admission else {}),
    }
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    cluster.api.create("/api/v1/namespaces", body)
    cluster.wait_for(lambda: cluster.api.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "an account")
    return name


def test_everything_that_is_rendered_is_there(installed: Cluster) -> None:
    # Hooks exist only for the time of an uninstallation, see ``test_uninstall``.
    manifests = [m for m in render() if "helm.sh/hook" not in m["metadata"].get("annotations", {})]
    found = installed.kubectl("get", "-f", "-", "-o", "name", text=yaml.safe_dump_all(manifests))
    assert len(found.split()) == len(manifests) > 30


def test_api_server_reports_no_warning_for_the_policies(installed: Cluster) -> None:
    policies = installed.wait_for(lambda: checked_policies(installed), "the policies' types to be checked")
    assert policies is not None
    assert {name: status.get("expressionWarnings", []) for name, status in policies.items()} == {
        "calabash-agent-claims": [],
        "calabash-agent-events": [],
        "calabash-agent-slices": [],
        "calabash-agent-taints": [],
        "calabash-agents": [],
        "calabash-devices": [],
        "calabash-plans": [],
    }


def checked_policies(cluster: Cluster) -> dict[str, Any] | None:
    items = cluster.api.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")["items"]
    if not all("typeChecking" in item.get("status", {}) for item in items):
        return None
    return {item["metadata"]["name"]: item["status"]["typeChecking"] for item in items}


@pytest.mark.parametrize("account", sorted(MAY))
def test_component_has_exactly_the_listed_rights(installed: Cluster, account: str) -> None:
    expected = {key: set(verbs) for key, verbs in MAY[account].items()}
    for role in BESIDES.get(account, ()):
        given = installed.api.get(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")["rules"]
        for key, verbs in by_resource(given).items():
            expected.setdefault(key, set()).update(verbs)
    everybody = rules(installed, "default")
    assert {k: v for k, v in rules(installed, account).items() if k not in everybody} == {
        k: v for k, v in expected.items() if k not in everybody
    }


def test_every_account_of_the_chart_is_written_here() -> None:
    need_helm()
    accounts = {m["metadata"]["name"] for m in render(SERVER) if m["kind"] == "ServiceAccount"}
    assert accounts == {*MAY, "calabash-cleanup"}, "that of the cleanup exists during an uninstallation alone"


def rules(cluster: Cluster, account: str) -> dict[tuple[str, str], set[str]]:
    """Return the rights of an account on objects, as the API server reports them."""
    api, _ = as_account(cluster, account)
    asked = {"kind": "SelfSubjectRulesReview", "spec": {"namespace": NAMESPACE}}
    group = "authorization.k8s.io/v1"
    said = api.create(f"/apis/{group}/selfsubjectrulesreviews", {"apiVersion": group, **asked})["status"]
    assert not said["incomplete"]
    return by_resource(said["resourceRules"])


def by_resource(listed: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """Return the verbs of RBAC rules by group and resource; ``resource=name`` is for rules on one object."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in listed:
        names = [f"={name}" for name in rule.get("resourceNames", ())] or [""]
        for key in ((g, r + n) for g in rule["apiGroups"] for r in rule["resources"] for n in names):
            found.setdefault(key, set()).update(rule["verbs"])
    return found


def test_agent_writes_the_object_of_its_own_node_and_no_other(installed: Cluster) -> None:
    api, _ = agent_on(installed, "fake-0")
    written = {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode"}
    own = {**written, "metadata": {"name": "fake-0"}}
    other = {**written, "metadata": {"name": "fake-1"}}
    api.patch(f"{GPU_NODES}/fake-0{APPLY}", own, "apply")
    api.patch(f"{GPU_NODES}/fake-0/status{APPLY}", {**own, "status": {"agentVersion": "1"}}, "apply")
    with pytest.raises(RefusedError, match="the agent of node fake-0 may not write GpuNode fake-1; hint: ") as refused:
        api.patch(f"{GPU_NODES}/fake-1{APPLY}", other, "apply")
    assert refused.value.status == 403
    installed.api.create(GPU_NODES, other)
    for path, body in (("fake-1", other), ("fake-1/status", {**other, "status": {"agentVersion": "1"}})):
        with pytest.raises(RefusedError, match="the agent of node fake-0 may not write GpuNode fake-1; hint: "):
            api.patch(f"{GPU_NODES}/{path}{APPLY}", body, "apply")
    with pytest.raises(RefusedError, match="may not write GpuNode"):
        api.create(GPU_NODES, {**written, "metadata": {"generateName": "fake-"}})


SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def resource_slice(node: str, driver: str = "calabash.dev") -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    metadata = {"name": f"{node}-{driver}"}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def test_agent_publishes_the_devices_of_its_own_node_and_no_other(installed: Cluster) -> None:
    api, _ = agent_on(installed, "fake-0")
    api.create(SLICES, resource_slice("fake-0"))
    for other in (resource_slice("fake-1"), resource_slice("fake-0", "gpu.nvidia.com")):
        with pytest.raises(RefusedError, match="the agent of node fake-0 may not write ResourceSlice"):
            api.create(SLICES, other)
    installed.api.create(SLICES, resource_slice("fake-1"))
    with pytest.raises(RefusedError, match="may not write ResourceSlice"):
        api.delete(f"{SLICES}/fake-1-calabash.dev")
    api.delete(f"{SLICES}/fake-0-calabash.dev")
    installed.api.delete(f"{SLICES}/fake-1-calabash.dev")


def test_agent_reports_the_devices_of_a_claim_and_changes_nothing_else_of_its_status(installed: Cluster) -> None:
    here = namespace(installed, "claims")
    path = f"/apis/resource.k8s.io/v1/namespaces/{here}/resourceclaims"
    exactly = {"deviceClassName": "calabash.dev"}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    kinds = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    installed.api.create(path, {**kinds, "metadata": {"name": "c"}, "spec": spec})
    given = {"request": "gpu", "driver": "calabash.dev", "pool": "fake-0", "device": "gpu-0"}
    field = {"key": "metadata.name", "operator": "In", "values": ["fake-0"]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    allocation = {"devices": {"results": [given]}, "nodeSelector": selector}
    installed.api.patch(f"{path}/c/status", {"status": {"allocation": allocation}}, "merge")
    told = {"driver": "calabash.dev", "pool": "fake-0", "device": "gpu-0", "conditions": []}
    api, _ = agent_on(installed, "fake-0")
    api.patch(f"{path}/c/status", {"status": {"devices": [told]}}, "merge")
    other, _ = agent_on(installed, "fake-1")
    for agent, status in ((api, {"allocation": None}), (other, {"devices": []})):
        with pytest.raises(RefusedError) as refused:
            agent.patch(f"{path}/c/status", {"status": status}, "merge")
        assert refused.value.status in {403, 422}
    installed.api.delete(f"{path}/c")


def test_token_of_the_agents_account_without_a_node_writes_nothing(installed: Cluster) -> None:
    api, _ = as_account(installed, "calabash-agent")
    body = {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "fake-0"}}
    with pytest.raises(RefusedError, match="does not say on which node its agent runs"):
        api.patch(f"{GPU_NODES}/fake-0{APPLY}", body, "apply")


def test_agent_removes_the_startup_taint_of_its_own_node_and_changes_nothing_else(
    installed: Cluster, tmp_path: Path
) -> None:
    api, token = agent_on(installed, "fake-0")
    ours = {"key": "calabash.dev/agent-not-ready", "effect": "NoSchedule"}
    theirs = {"key": "example.com/theirs", "effect": "NoSchedule"}
    for node in ("fake-0", "fake-1"):
        installed.api.patch(f"{NODES}/{node}", {"spec": {"taints": [theirs, ours]}}, "strategic")
    changes: list[dict[str, Any]] = [
        {"spec": {"taints": [ours]}},
        {"spec": {"taints": [theirs, ours, {"key": "more", "effect": "NoSchedule"}]}},
        {"spec": {"taints": []}},
        {"spec": {"taints": [theirs], "unschedulable": True}},
        {"spec": {"taints": [theirs]}, "metadata": {"labels": {"pool": "mine"}}},
        {"spec": {"taints": [theirs]}, "metadata": {"annotations": {"theirs": "no"}}},
        {"spec": {"taints": [theirs], "podCIDR": "10.0.0.0/24"}},
    ]
    for change in changes:
        with pytest.raises(RefusedError, match="changes nothing else of it; hint: "):
            api.patch(f"{NODES}/fake-0", change, "merge")
    with pytest.raises(RefusedError, match="the agent of node fake-0 may not write Node fake-1; hint: "):
        api.patch(f"{NODES}/fake-1", {"spec": {"taints": [theirs]}}, "merge")
    client = client_of(installed, token, tmp_path)
    assert StartupTaint(client, "fake-0").lift()
    assert [taint["key"] for taint in installed.api.get(f"{NODES}/fake-0")["spec"]["taints"]] == ["example.com/theirs"]
    for node in ("fake-0", "fake-1"):
        installed.api.patch(f"{NODES}/{node}", {"spec": {"taints": None}}, "strategic")


def test_agent_writes_events_about_its_own_node_and_nothing_else(installed: Cluster, tmp_path: Path) -> None:
    api, token = agent_on(installed, "fake-0")
    client = client_of(installed, token, tmp_path)
    failing = CalabashError("there is another one", reason=Reason.FOREIGN_PLUGIN)
    own = NodeEvents(client, "fake-0")
    for error in (failing, None, failing):  # the second time it is counted
        own.report_state(error)
    with pytest.raises(KubeError, match="an agent tells events of its own node; hint: "):
        NodeEvents(client, "fake-1").report_state(failing)
    told = [event for event in client_events(installed) if event["reason"] == "ForeignPlugin"]
    assert [(event["involvedObject"]["name"], event["count"]) for event in told] == [("fake-0", 2)]
    with pytest.raises(RefusedError) as refused:
        api.create(f"/api/v1/namespaces/{NAMESPACE}/events", {**told[0], "metadata": {"generateName": "x"}})
    assert refused.value.status == 403


def client_events(cluster: Cluster) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = cluster.api.get("/api/v1/namespaces/default/events")["items"]
    return events


@pytest.mark.parametrize("annotation", ["plan", "request", "dialect"])
@pytest.mark.parametrize("subresource", ["", "/status"])
def test_nobody_but_the_planner_writes_a_plan(installed: Cluster, annotation: str, subresource: str) -> None:
    name = f"plans-{annotation}{subresource.replace('/', '-')}"
    path = PODS.format("default")
    installed.api.create(path, pod(name))
    body = {"metadata": {"annotations": {f"calabash.dev/{annotation}": "{}"}}}
    with pytest.raises(RefusedError, match=r"written .*; hint: ") as refused:
        installed.api.patch(f"{path}/{name}{subresource}", body)
    assert refused.value.status == 403
    planner = f"--as=system:serviceaccount:{NAMESPACE}:calabash-planner"
    words = ["--subresource=status"] if subresource else []
    installed.kubectl("patch", "pod", name, planner, "--as-group=system:masters", *words, "-p", json.dumps(body))
    with pytest.raises(RefusedError, match=r"written .*; hint: "):
        installed.api.patch(
            f"{path}/{name}{subresource}", {"metadata": {"annotations": {f"calabash.dev/{annotation}": None}}}
        )
    installed.api.patch(f"{path}/{name}", {"metadata": {"labels": {"theirs": "yes"}}})


def test_new_pod_or_binding_that_contains_a_plan_is_refused(installed: Cluster) -> None:
    path = PODS.format(namespace(installed, "unread", admission="off"))
    with pytest.raises(RefusedError, match="written by the planner alone"):
        installed.api.create(path, pod("brings-a-plan", annotations={"calabash.dev/plan": "{}"}))
    installed.api.create(path, pod("to-be-bound"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "to-be-bound", "annotations": {"calabash.dev/plan": "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "fake-0"},
    }
    for way in (f"{path}/to-be-bound/binding", path.replace("pods", "bindings")):
        with pytest.raises(RefusedError, match="written by the planner alone"):
            installed.api.create(way, binding)


def test_user_may_not_remove_the_scheduling_gate_of_the_planner(installed: Cluster) -> None:
    path = PODS.format("default")
    gated = pod("gated")
    gated["spec"]["schedulingGates"] = [{"name": "calabash.dev/plan"}, {"name": "example.com/theirs"}]
    installed.api.create(path, gated)
    theirs = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/theirs"}]}}
    ours = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "calabash.dev/plan"}]}}
    installed.api.patch(f"{path}/gated", theirs, "strategic")
    with pytest.raises(RefusedError, match="taken away by the planner alone; hint: "):
        installed.api.patch(f"{path}/gated", ours, "strategic")


def test_while_nobody_admits_only_pods_that_ask_for_devices_wait(installed: Cluster) -> None:
    asking = {"nvidia.com/gpu": "1"}
    for name, admission in (("closed", ""), ("opened", "optional"), ("left-alone", "off")):
        installed.api.create(PODS.format(namespace(installed, name, admission=admission)), pod("plain"))
    with pytest.raises(RefusedError, match="failed calling webhook"):
        installed.api.create(PODS.format("closed"), pod("asks", limits=asking))
    installed.api.create(PODS.format("opened"), pod("asks", limits=asking))
    installed.api.create(PODS.format("left-alone"), pod("asks", limits=asking))


def test_admission_may_do_what_it_does(installed: Cluster, tmp_path: Path) -> None:
    _, token = as_account(installed, "calabash-admission")
    client = client_of(installed, token, tmp_path)
    CertificateKeeper(client, AdmissionSettings().certificates).refresh(datetime.datetime.now(datetime.UTC))
    hooks = {"pods.calabash.dev", "optional.calabash.dev", "plans.calabash.dev", "claims.calabash.dev"}
    assert trusted(installed).keys() == hooks
    claims = [
        AskingClaim(name="one", resource_claim_name="absent"),
        AskingClaim(name="other", resource_claim_template_name="absent"),
    ]
    assert look_up(client, "default", claims, {}) == {}
    assert all(trusted(installed).values())
    namespaces = Mirror(client, NAMESPACES)
    namespaces.start()
    try:
        installed.wait_for(namespaces.synced, "the namespaces")
    finally:
        namespaces.stop()


def test_agent_can_watch_the_pods_of_its_node(installed: Cluster, tmp_path: Path) -> None:
    _, token = agent_on(installed, "fake-0")
    pods = Mirror(client_of(installed, token, tmp_path), POD, field_selector="spec.nodeName=fake-0")
    pods.start()
    try:
        installed.wait_for(pods.synced, "the pods")
    finally:
        pods.stop()


def test_planner_has_the_rights_that_it_needs(installed: Cluster, tmp_path: Path) -> None:
    _, token = as_account(installed, "calabash-planner")
    client = client_of(installed, token, tmp_path)
    service = PlannerService(client, PlannerSettings(port=0, namespace=NAMESPACE, renew_every_s=0.1))
    service.start()
    try:
        installed.wait_for(service.leads, "the planner to lead")
    finally:
        service.stop()
    place = namespace(installed, "planned", admission="off")
    gated = pod("to-be-planned")
    gated["spec"]["schedulingGates"] = [{"name": "calabash.dev/plan"}]
    uid = installed.api.create(PODS.format(place), gated)["metadata"]["uid"]
    planned = PodName(namespace=place, name="to-be-planned", uid=uid)
    plan = PodPlan(id="a", pod_uid=uid, node="fake-0", containers=())
    orders = ApiWrites(client)
    for _ in range(2):  # the second time the event is counted
        orders.report(Report(pod=planned, reason=Reason.NO_CAPACITY, message="0 of 2 nodes have room"))
    orders.release(planned, plan, None)
    orders.bind(planned, "fake-0")
    assert orders.evict(planned)[0] is EvictedAs.OK


def trusted(cluster: Cluster) -> dict[str, str]:
    """Return the CA bundle of each webhook."""
    found: dict[str, str] = {}
    for kind in ("mutating", "validating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/calabash-admission"
        found |= {w["name"]: w["clientConfig"].get("caBundle", "") for w in cluster.api.get(path)["webhooks"]}
    return found


NETWORK = """
apiVersion: calabash.dev/v1alpha1
kind: Vpc
metadata: {name: red}
spec: {cidrs: [10.0.0.0/16], tenant: vision}
---
apiVersion: calabash.dev/v1alpha1
kind: Subnet
metadata: {name: red.a}
spec: {cidrs: [10.0.1.0/24]}
---
apiVersion: calabash.dev/v1alpha1
kind: Port
metadata: {name: red.a.web1}
spec: {}
"""


def test_networks_that_are_applied_stand_and_go_by_the_rights_of_the_server_alone(
    installed: Cluster, tmp_path: Path
) -> None:
    _, token = as_account(installed, "calabash-server")
    store = open_store(f"sqlite:///{tmp_path}/pool.db")
    file = tmp_path / "network.yaml"
    file.write_text(NETWORK)
    networks = pool_networks(store)
    keeper = KubeNetworkKeeper(client_of(installed, token, tmp_path), networks)
    keeper.start()
    try:
        installed.kubectl("apply", "-f", str(file))
        installed.kubectl("wait", "--for=condition=Valid", "--timeout=60s", "-f", str(file))
        port = json.loads(installed.kubectl("get", "ports.calabash.dev", "red.a.web1", "-o", "json"))
        assert port["status"]["completed"]["addresses"] == ["10.0.1.2"]
        assert networks.state().kept["port", "red/a/web1"].tenant == "vision"
        installed.kubectl("delete", "--timeout=60s", "-f", str(file))
        assert not networks.state().kept
    finally:
        keeper.stop()
        store.close()


def test_upgrade_keeps_the_certificates_and_the_trusted_authorities(installed: Cluster, tmp_path: Path) -> None:
    _, token = as_account(installed, "calabash-admission")
    keeper = CertificateKeeper(client_of(installed, token, tmp_path), AdmissionSettings().certificates)
    before = keeper.refresh(datetime.datetime.now(datetime.UTC))
    authorities = trusted(installed)
    helm(installed, "upgrade", values={"admission": {"replicas": 3, "exemptNamespaces": ["kube-system"]}})
    deployment = installed.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/calabash-admission")
    assert deployment["spec"]["replicas"] == 3
    assert trusted(installed) == authorities
    assert keeper.refresh(datetime.datetime.now(datetime.UTC)) == before


def test_what_is_not_the_agent_keeps_to_the_strictest_pod_security(installed: Cluster) -> None:
    pods = f"{PODS.format(namespace(installed, 'strict', level='restricted'))}?dryRun=All"
    manifests = render()
    for manifest in (m for m in manifests if m["kind"] == "Deployment"):
        installed.api.create(pods, pod_of(manifest))
    with pytest.raises(RefusedError, match="violates PodSecurity"):
        installed.api.create(pods, pod_of(one(manifests, "DaemonSet", "calabash-agent")))


def pod_of(manifest: charts.Manifest) -> dict[str, Any]:
    """Return a pod with the spec of a component's pod, under the service account that every namespace has."""
    spec = {**manifest["spec"]["template"]["spec"], "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": manifest["metadata"]["name"]}, "spec": spec}


NVIDIA_DEVICES: Mapping[str, dict[str, Any]] = {
    "class": {"spec": {"runtimeClassName": "nvidia"}},
    "environment": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    "environment-of-an-index": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]},
    "environment-from-elsewhere": {
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    },
    "init": {"init": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
    "mount": {"mount": "/var/run/nvidia-container-devices/all"},
    "annotation": {"annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}},
}


def asking_past_the_agent(name: str, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod to which NVIDIA's container runtime would give devices that the agent did not grant.

    Args:
        how: fields of the pod that make the runtime do so (``NVIDIA_DEVICES``).
    """
    made = pod(name, annotations=how.get("annotations", {}))
    (main,) = made["spec"]["containers"]
    main["env"] = how.get("env", [])
    if "mount" in how:
        main["volumeMounts"] = [{"name": "none", "mountPath": how["mount"]}]
        made["spec"]["volumes"] = [{"name": "none", "emptyDir": {}}]
    if "init" in how:
        made["spec"]["initContainers"] = [{**main, "name": "first", "env": how["init"]}]
    made["spec"] |= how.get("spec", {})
    return made


def test_pod_that_asks_nvidias_runtime_for_devices_is_refused_unless_its_namespace_is_exempt(
    installed: Cluster,
) -> None:
    name = namespace(installed, "past-the-agent", admission="off")
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc"}
    for class_name in ("nvidia", "other"):
        installed.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime_class | {"metadata": {"name": class_name}})
    for way, how in NVIDIA_DEVICES.items():
        with pytest.raises(RefusedError, match="not granted; hint: leave it out") as refused:
            installed.api.create(PODS.format(name), asking_past_the_agent(way, how))
        assert refused.value.status == 403
        installed.api.create(PODS.format("kube-system"), asking_past_the_agent(way, how))
    for harmless in ("", "void", "none"):
        how = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": harmless}], "spec": {"runtimeClassName": "other"}}
        installed.api.create(PODS.format(name), asking_past_the_agent(f"harmless-{harmless or 'empty'}", how))


def test_ephemeral_container_that_asks_nvidias_runtime_for_devices_is_refused(installed: Cluster) -> None:
    name = namespace(installed, "past-the-agent-later", admission="off")
    installed.api.create(PODS.format(name), pod("debugged"))
    added = {
        "name": "debug",
        "image": "localhost/busybox:1",
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
    }
    path = f"{PODS.format(name)}/debugged/ephemeralcontainers"
    with pytest.raises(RefusedError, match="not granted; hint: leave it out"):
        installed.api.patch(path, {"spec": {"ephemeralContainers": [added]}}, "strategic")
    harmless = {key: value for key, value in added.items() if key != "env"}
    installed.api.patch(path, {"spec": {"ephemeralContainers": [harmless]}}, "strategic")
