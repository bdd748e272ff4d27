"""Tests of the chart: the objects that it renders for several values, and the values that it refuses.

The tests need Helm but no cluster.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from tests.kube import charts
from tests.kube.charts import NAMESPACE, Manifest, need_helm, one, render

from calabash.cli.commands import cli
from calabash.cli.programs.serve import serve
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating
from calabash.kubernetes.gangs.table import read_kinds
from calabash.kubernetes.metrics.run import REGISTERED
from calabash.kubernetes.metrics.run import SERVICE as METRICS
from calabash.kubernetes.node_plugin.daemon import read_settings
from calabash.kubernetes.node_plugin.devices.relay import parser as relay_parser
from calabash.kubernetes.node_plugin.settings import AgentSettings, relay_directory
from calabash.kubernetes.objects.shards import Shard
from calabash.kubernetes.planner.serve.scheduler_config import scheduler_configuration
from calabash.kubernetes.planner.service import PlannerSettings
from calabash.node.modes.protocol import WorkerUsers
from calabash.node.processes.unmanaged import UnmanagedPolicy

WORKLOADS = {"DaemonSet", "Deployment"}


@pytest.fixture(autouse=True)
def _helm() -> None:
    need_helm()


def containers(manifests: list[Manifest]) -> list[tuple[Manifest, Manifest]]:
    """Return every container of the components, with the spec of its pod."""
    specs = [m["spec"]["template"]["spec"] for m in manifests if m["kind"] in WORKLOADS]
    return [(container, spec) for spec in specs for container in spec["containers"]]


def parsed_by_the_product(command: str, words: list[str]) -> dict[str, Any]:
    """Return the parameters that a command of the product parses from these arguments.

    Raises:
        click.UsageError: the command does not know an option.
    """
    context = cli.make_context("calabash", command.split())
    parsed: click.Command = cli
    for word in command.split():
        assert isinstance(parsed, click.Group)
        parsed = parsed.get_command(context, word) or pytest.fail(f"no command {command}")
    return parsed.make_context(command, list(words), parent=context).params


def test_helm_finds_nothing_to_complain_about() -> None:
    assert "0 chart(s) failed" in charts.helm("lint", "--strict", str(charts.CHART))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"agent": {"simulated": "/var/lib/calabash-sim/state", "unmanagedProcesses": "kill", "maxUnavailable": 1}},
        {"admission": {"certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "ours"}}}},
        {"namespace": {"create": True}, "imagePullSecrets": [{"name": "registry"}]},
        {"priorityClasses": [{"name": "urgent", "value": 1000, "description": "now: or never"}]},
        {"metrics": {"enabled": True}},
        {"metrics": {"enabled": True, "serviceMonitor": {"enabled": True}}, "server": {"enabled": True}},
    ],
    ids=["defaults", "simulated", "cert-manager", "namespace", "priorities", "metrics", "monitoring"],
)
def test_every_object_stands_where_its_kind_belongs_and_says_whose_it_is(values: Manifest) -> None:
    manifests = [m for m in render(values) if m["kind"] != "CustomResourceDefinition"]
    assert len(manifests) > 15
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "calabash"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        # Events of nodes are in the namespace ``default``; the CA of API servers' clients is in ``kube-system``.
        places = {"default", "kube-system"} if manifest["kind"] in {"Role", "RoleBinding"} else {NAMESPACE}
        assert manifest["metadata"].get("namespace", NAMESPACE) in {NAMESPACE, *places}
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"agent": {"unmanagedProcesses": "shout"}}, "/agent/unmanagedProcesses"),
        ({"agent": {"home": "var/lib/calabash"}}, "/agent/home"),
        ({"agent": {"home": "/"}}, "/agent/home"),
        ({"agent": {"maxUnavailable": 0}}, "/agent/maxUnavailable"),
        ({"agent": {"maxUnavailable": "some"}}, "/agent/maxUnavailable"),
        ({"agent": {"privileged": False}}, "privileged"),
        ({"agents": {}}, "agents"),
        ({"admission": {"replicas": 0}}, "/admission/replicas"),
        ({"admission": {"port": 70000}}, "/admission/port"),
        ({"admission": {"exemptNamespaces": ["Kube System"]}}, "/admission/exemptNamespaces/0"),
        ({"admission": {"certManager": {"enabled": True}}}, "/admission/certManager/issuerRef/name"),
        ({"admission": {"units": {"aliyunMemoryMib": 0}}}, "/admission/units/aliyunMemoryMib"),
        ({"planner": {"replicas": 11}}, "/planner/replicas"),
        ({"planner": {"shards": ["Not a name"]}}, "/planner/shards/0"),
        ({"planner": {"shards": ["a"], "handshake": "affinity"}}, "planner.shards"),
        ({"metrics": {"enabled": "yes"}}, "/metrics/enabled"),
        ({"metrics": {"serviceMonitor": {"interval": "often"}}}, "/metrics/serviceMonitor/interval"),
        ({"networkPolicies": {"prometheus": [{"pods": {}}]}}, "/networkPolicies/prometheus/0"),
        ({"networkPolicies": {"prometheus": [{}]}}, "/networkPolicies/prometheus/0"),
        ({"agent": {"useEverySeconds": -1}}, "/agent/useEverySeconds"),
        ({"agent": {"serveNvidiaNames": "yes"}}, "/agent/serveNvidiaNames"),
        ({"agent": {"workers": {"firstUser": 0}}}, "/agent/workers/firstUser"),
        ({"scheduler": {"image": {"repository": "no spaces"}}}, "/scheduler/image/repository"),
        ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
        ({"image": {"tag": "two words"}}, "/image/tag"),
        ({"networkPolicies": {"apiServer": {"ports": []}}}, "/networkPolicies/apiServer/ports"),
        ({"priorityClasses": [{"name": "urgent"}]}, "value"),
        ({"policies": {"enabled": False}}, "policies.acknowledgeUnconfined=true"),
        ({"priorityClasses": [{"name": "urgent", "value": 2000000000}]}, "/priorityClasses/0/value"),
    ],
)
def test_invalid_value_is_refused_with_its_path(values: Manifest, complaint: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        render(values)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("extended", ["", "gpu.example.com/whole-card_1"])
@pytest.mark.parametrize("exempt", [["kube-system"], ["kube-system", "monitoring"], []])
def test_api_servers_are_told_to_ask_what_the_product_would_tell_them(exempt: list[str], extended: str) -> None:
    manifests = render({"admission": {"exemptNamespaces": exempt}, "claims": {"extendedResourceName": extended}})
    settings = AdmissionSettings(exempt_namespaces=tuple(exempt), extended_resources=(extended,) if extended else ())
    for wanted in (mutating(settings), validating(settings)):
        found = one(manifests, wanted["kind"], "calabash-admission")
        assert found["webhooks"] == json.loads(json.dumps(wanted["webhooks"]))
        assert found["apiVersion"] == wanted["apiVersion"]


FLOCK: Manifest = {
    "system": "Flock",
    "group": "flock.example.com",
    "kind": "Flock",
    "plural": "flocks",
    "versions": ["v1"],
    "roles": [{"at": "spec.members", "each": "list", "nameAt": "as", "replicas": ["number"]}],
    "roleLabels": ["flock.example.com/as"],
}


@pytest.mark.parametrize("owners", [[], [FLOCK]])
def test_kinds_of_gang_owners_reach_admission_its_webhooks_and_its_role(owners: list[Manifest]) -> None:
    manifests = render({"gangs": {"owners": owners}})
    settings = yaml.safe_load(one(manifests, "ConfigMap", "calabash-admission")["data"]["settings.yaml"])
    told = msgspec.convert(settings, type=AdmissionSettings)
    assert told.gang_owners == owners
    found = one(manifests, "MutatingWebhookConfiguration", "calabash-admission")
    assert found["webhooks"] == json.loads(json.dumps(mutating(told)["webhooks"]))
    rules = one(manifests, "ClusterRole", "calabash-admission")["rules"]
    kinds = {(kind.group, kind.plural) for kind in read_kinds(told.gang_table).values()}
    verbs = {
        (group, plural): rule["verbs"] for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]
    }
    assert {kind: verbs.get(kind) for kind in kinds} == {kind: ["get"] for kind in kinds}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "flock"}, "/gangs/owners/0/kind"),
        ({"members": 3}, "members"),
        ({"roles": []}, "/gangs/owners/0/roles"),
    ],
)
def test_invalid_kind_of_gang_owners_is_refused_by_helm(change: Manifest, complaint: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        render({"gangs": {"owners": [FLOCK | change]}})
    assert complaint in str(refused.value)


def test_admission_is_told_its_settings_in_its_own_words() -> None:
    def told(values: Manifest) -> AdmissionSettings:
        settings = one(render(values), "ConfigMap", "calabash-admission")["data"]["settings.yaml"]
        return msgspec.convert(yaml.safe_load(settings), type=AdmissionSettings)

    levels = (
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/block",
        "topology.kubernetes.io/rack",
        "nvidia.com/gpu.clique",
    )
    default = AdmissionSettings(topology_levels=levels)
    assert told({}) == default
    assert told({"topology": {"levels": []}}) == AdmissionSettings()
    values = {"port": 9443, "exemptNamespaces": ["a"], "units": {"volcanoMemoryMib": 10}}
    changed = msgspec.structs.replace(default, port=9443, exempt_namespaces=("a",), volcano_memory_mib=10)
    assert told({"admission": values}) == changed
    named = told({"claims": {"extendedResourceName": "example.com/gpu"}})
    assert named == msgspec.structs.replace(default, extended_resources=("example.com/gpu",))


def test_metrics_are_served_where_they_are_wanted_and_then_as_the_product_registers_them() -> None:
    assert not [m for m in render() if m["metadata"]["name"] in (METRICS, REGISTERED)]
    manifests = render({"metrics": {"enabled": True, "port": 9444}})
    found = one(manifests, "APIService", REGISTERED)["spec"]
    assert (found["service"]["name"], found["service"]["namespace"]) == (METRICS, NAMESPACE)
    assert one(manifests, "Secret", f"{METRICS}-tls")["metadata"]["namespace"] == NAMESPACE
    (container,) = one(manifests, "Deployment", METRICS)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["calabash", "serve", "metrics"]
    read = parsed_by_the_product("serve metrics", container["args"])
    assert (read["namespace"], read["port"]) == (NAMESPACE, 9444)
    assert container["ports"][0]["containerPort"] == 9444


def test_with_cert_manager_admission_reads_a_certificate_and_writes_nothing() -> None:
    values = {"admission": {"certManager": {"enabled": True, "issuerRef": {"name": "ours"}}}}
    manifests = render(values)
    certificate = one(manifests, "Certificate", "calabash-admission")["spec"]
    settings = yaml.safe_load(one(manifests, "ConfigMap", "calabash-admission")["data"]["settings.yaml"])
    spec = one(manifests, "Deployment", "calabash-admission")["spec"]["template"]["spec"]
    mounted = {v["name"]: v.get("secret", {}).get("secretName") for v in spec["volumes"]}
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == settings["certificate_dir"])
    assert mounted[mount["name"]] == certificate["secretName"]
    assert f"calabash-admission.{NAMESPACE}.svc" in certificate["dnsNames"]
    verbs = {verb for r in one(manifests, "ClusterRole", "calabash-admission")["rules"] for verb in r["verbs"]}
    assert verbs == {"get", "list", "watch"}
    assert not [m for m in manifests if m["kind"] == "Secret"]
    assert not [m for m in manifests if m["kind"] == "Role" and m["metadata"]["name"] == "calabash-admission"]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = one(manifests, kind, "calabash-admission")["metadata"]["annotations"]
        assert annotations["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/calabash-admission"


def test_admission_is_a_command_of_the_product_and_knows_its_words() -> None:
    (container,) = (c for c, _ in containers(render()) if c["name"] == "admission")
    program, *command = container["command"]
    assert program == "calabash"
    assert parsed_by_the_product(" ".join(command), container["args"])["settings_file"] == Path(
        "/etc/calabash/settings.yaml"
    )


def test_agent_command_accepts_the_arguments_of_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "agent": {
            "simulated": "/var/lib/sim/lab.state",
            "unmanagedProcesses": "drain",
            "driverRoot": "/run/nvidia/driver",
            "useEverySeconds": 30,
            "workers": {"firstUser": 2_100_000_000, "lastUser": 2_100_000_999},
            "serveNvidiaNames": True,
        }
    }
    (container,) = (c for c, _ in containers(render(values)) if c["name"] == "agent")
    assert container["command"] == ["calabash", "serve", "agent"]
    assert serve.get_command(click.Context(serve), "agent") is not None
    assert [variable["name"] for variable in container["env"]] == ["NODE_NAME"]
    monkeypatch.setenv("NODE_NAME", "node7")
    assert read_settings(container["args"]) == AgentSettings(
        node="node7",
        host=Path("/host"),
        driver_root="/run/nvidia/driver",
        sim_state=Path("/var/lib/sim/lab.state"),
        unmanaged_policy=UnmanagedPolicy.DRAIN,
        use_every_s=30.0,
        workers=WorkerUsers(first=2_100_000_000, last=2_100_000_999),
        unguarded=frozenset({"kube-system", "gpu-operator", NAMESPACE}),
        relay=True,
        serve_nvidia_names=True,
        metrics_port=7072,
    )
    for wanted in (values, {}):
        assert gpu_node_verbs(wanted) == ["create", "patch", "get", "list", "watch"], (
            "it writes its own, and follows its spec"
        )


def test_agent_leaves_device_access_alone_where_the_values_say_so() -> None:
    def unguarded(values: Manifest) -> frozenset[str]:
        (agent,) = (c for c, _ in containers(render(values)) if c["name"] == "agent")
        return read_settings(agent["args"]).unguarded

    assert unguarded({"agent": {"guardDevices": False}}) == {"*"}
    assert unguarded({"policies": {"devices": {"exemptNamespaces": ["monitoring"]}}}) == {"monitoring", NAMESPACE}


def gpu_node_verbs(values: Manifest) -> list[str]:
    """Return the verbs that the agent's role has for GpuNodes."""
    rules = one(render(values), "ClusterRole", "calabash-agent")["rules"]
    (verbs,) = (rule["verbs"] for rule in rules if rule["resources"] == ["gpunodes"])
    return list(verbs)


def test_nvidias_runtime_is_asked_for_the_driver_where_cards_are_real() -> None:
    spec = one(render({"agent": {"runtimeClassName": "nvidia"}}), "DaemonSet", "calabash-agent")["spec"]["template"][
        "spec"
    ]
    environment = {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}
    assert spec["runtimeClassName"] == "nvidia"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "runtimeClassName" not in one(render(), "DaemonSet", "calabash-agent")["spec"]["template"]["spec"]


def test_planner_command_accepts_the_arguments_of_the_chart() -> None:
    manifests = render({"planner": {"nominateFrom": 7}})
    (container,) = (c for c, _ in containers(manifests) if c["name"] == "planner")
    program, *command = container["command"]
    assert program == "calabash"
    read = parsed_by_the_product(" ".join(command), container["args"])
    assert read["nominate_from"] == 7
    assert read["namespace"] == NAMESPACE
    assert [variable["name"] for variable in container["env"]] == ["POD_NAME"]
    configuration = json.loads(one(manifests, "ConfigMap", "calabash-scheduler")["data"]["scheduler.json"])
    assert {extender["urlPrefix"] for extender in configuration["extenders"]} == {f"http://{read['listen']}"}
    assert configuration["leaderElection"]["resourceName"] == read["scheduler_lease"]


def test_where_no_second_scheduler_may_run_there_is_none_and_nobody_has_its_rights() -> None:
    manifests = render({"planner": {"handshake": "affinity"}})
    (container,) = one(manifests, "Deployment", "calabash-planner")["spec"]["template"]["spec"]["containers"]
    read = parsed_by_the_product("serve planner", container["args"])
    assert (read["handshake"], read["scheduler_lease"]) == ("affinity", "")
    assert "calabash-scheduler" not in {m["metadata"]["name"] for m in manifests}
    roles = {m["roleRef"]["name"] for m in manifests if m["kind"] == "ClusterRoleBinding"}
    assert not any(name.startswith("system:") for name in roles)
    rules = one(manifests, "ClusterRole", "calabash-planner")["rules"]
    assert not any("pods/binding" in rule["resources"] for rule in rules)
    settings = yaml.safe_load(one(manifests, "ConfigMap", "calabash-admission")["data"]["settings.yaml"])
    assert settings["second_scheduler"] is False


def test_every_pool_that_is_named_has_a_planner_and_a_scheduler_and_the_rest_has_one() -> None:
    manifests = render({"planner": {"shards": ["a", "b-2"]}})
    for pool in ("", "a", "b-2"):
        shard = Shard(pool=pool)
        suffix = f"-{pool}" if pool else ""
        deployment = one(manifests, "Deployment", f"calabash-planner{suffix}")
        assert deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == f"planner{suffix}"
        spec = deployment["spec"]["template"]["spec"]
        (container,) = (c for c in spec["containers"] if c["name"] == "planner")
        read = parsed_by_the_product("serve planner", container["args"])
        assert Shard.from_selector(read["nodes"]) == shard
        (volume,) = spec["volumes"]
        text = one(manifests, "ConfigMap", volume["configMap"]["name"])["data"]["scheduler.json"]
        told = json.loads(text)
        assert told == scheduler_configuration(
            "http://127.0.0.1:7070", name=shard.scheduler, leaderElection=told["leaderElection"]
        )
        assert told["leaderElection"]["resourceName"] == read["scheduler_lease"] == f"calabash-scheduler{suffix}"
        (named,) = (r for r in rules_of(manifests, "Role") if "resourceNames" in r)
        assert {shard.lease, read["scheduler_lease"]} <= set(named["resourceNames"])
    settings = yaml.safe_load(one(manifests, "ConfigMap", "calabash-admission")["data"]["settings.yaml"])
    assert msgspec.convert(settings, type=AdmissionSettings).shards == ("a", "b-2")


def rules_of(manifests: list[Manifest], kind: str) -> list[Manifest]:
    found: list[Manifest] = one(manifests, kind, "calabash-planner")["rules"]
    return found


def test_one_planner_has_none_of_the_rights_by_which_several_share_a_cluster() -> None:
    manifests = render()
    assert not any(
        {"patch", "update"} & set(r["verbs"]) and "gpunodes" in r["resources"]
        for r in rules_of(manifests, "ClusterRole")
    )
    leases = rules_of(manifests, "Role")
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in leases] == [
        (None, ["list", "create"]),
        (["calabash-planner", "calabash-scheduler"], ["get", "patch", "update"]),
    ]
    assert "shards" not in one(manifests, "ConfigMap", "calabash-admission")["data"]["settings.yaml"]


def test_planner_listens_on_loopback_of_its_pod_only() -> None:
    """Every client of the planner can bind pods, and not every cluster enforces NetworkPolicies."""
    manifests = render({"networkPolicies": {"enabled": False}})
    spec = one(manifests, "Deployment", "calabash-planner")["spec"]["template"]["spec"]
    (container,) = (c for c in spec["containers"] if c["name"] == "planner")
    host, _, _ = parsed_by_the_product("serve planner", container["args"])["listen"].rpartition(":")
    assert ipaddress.ip_address(host).is_loopback
    assert not spec.get("hostNetwork")
    assert [m["metadata"]["name"] for m in manifests if m["kind"] == "Service"] == ["calabash-admission"]


def test_unless_told_the_planner_nominates_as_it_would_by_itself() -> None:
    (container,) = (c for c, _ in containers(render()) if c["name"] == "planner")
    assert f"--nominate-from={PlannerSettings().nominate_nodes_min}" in container["args"]
    assert f"--nominate-claims-from={PlannerSettings().nominate_claims_nodes_min}" in container["args"]
    assert f"--give-back-after={PlannerSettings().refused_s:g}" in container["args"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, (PlannerSettings().moves_at_once, PlannerSettings().move_after_s, PlannerSettings().move_rest_s)),
        ({"enabled": False}, (0, 30.0, 600.0)),
        ({"atOnce": 3, "afterSeconds": 0.5, "restSeconds": 2592000}, (3, 0.5, 2592000.0)),
    ],
)
def test_whom_the_planner_moves_is_as_the_values_say(values: Manifest, told: tuple[int, float, float]) -> None:
    manifests = render({"planner": {"defragmentation": values}})
    (container,) = (c for c, _ in containers(manifests) if c["name"] == "planner")
    read = parsed_by_the_product("serve planner", container["args"])
    assert (read["moves"], read["move_after"], read["move_interval"]) == told


def test_kube_scheduler_is_told_what_the_product_would_tell_it() -> None:
    text = one(render(), "ConfigMap", "calabash-scheduler")["data"]["scheduler.json"]
    told = json.loads(text)
    assert told == scheduler_configuration(told["extenders"][0]["urlPrefix"], leaderElection=told["leaderElection"])
    assert told["leaderElection"]["resourceNamespace"] == NAMESPACE


@pytest.mark.parametrize(
    ("cluster", "tag"), [("v1.35.2", "v1.35.2"), ("v1.35.2+k3s1", "v1.35.2"), ("1.36.1-gke.7", "v1.36.1")]
)
def test_kube_scheduler_has_the_version_of_the_cluster(cluster: str, tag: str) -> None:
    text = charts.helm("template", "calabash", str(charts.CHART), "--kube-version", cluster)
    assert f"image: registry.k8s.io/kube-scheduler:{tag}\n" in text


def test_only_the_agent_is_privileged_and_nobody_writes_to_its_own_image() -> None:
    found = containers(render())
    assert {c["name"] for c, _ in found if c["securityContext"].get("privileged")} == {"agent"}
    for container, spec in found:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert "limits" in container["resources"]
        if container["name"] != "agent":
            assert security["capabilities"] == {"drop": ["ALL"]}
        if container["name"] not in {"agent", "plugin-relay"}:
            assert spec["automountServiceAccountToken"] is True
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert "hostPath" not in json.dumps(spec)


def test_relay_of_device_plugins_has_two_directories_and_neither_token_nor_rights() -> None:
    values = {"agent": {"home": "/data/calabash", "kubelet": "/data/kubelet"}}
    spec = one(render(values), "DaemonSet", "calabash-agent")["spec"]["template"]["spec"]
    agent, relay = spec["containers"]
    assert "--relay" in agent["args"]
    read = relay_parser().parse_args(relay["args"])
    assert (relay["command"], read.home, read.kubelet) == (
        ["calabash", "serve", "plugin-relay"],
        Path("/data/calabash"),
        Path("/data/kubelet"),
    )
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: paths[mount["name"]] for mount in relay["volumeMounts"]}
    own = str(relay_directory(Path("/data/calabash")))
    assert mounts == {path: path for path in (own, "/data/kubelet/device-plugins")}
    assert relay["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec["automountServiceAccountToken"] is False
    tokens = [
        m["mountPath"] for c in spec["containers"] for m in c["volumeMounts"] if "serviceaccount" in m["mountPath"]
    ]
    assert tokens == ["/var/run/secrets/kubernetes.io/serviceaccount"]
    assert not any(variable.get("value") == "all" for variable in relay["env"])


def test_agent_mounts_the_directories_that_the_values_name() -> None:
    values = {"agent": {"home": "/data/calabash", "kubelet": "/data/kubelet", "specs": "/run/cdi"}}
    spec = one(render(values), "DaemonSet", "calabash-agent")["spec"]["template"]["spec"]
    (agent,) = (container for container in spec["containers"] if container["name"] == "agent")
    paths = {v["name"]: v.get("hostPath", {}).get("path") for v in spec["volumes"]}
    mounts: dict[str, Any] = {m["mountPath"]: m for m in agent["volumeMounts"]}
    for path in ("/data/calabash", "/data/kubelet/device-plugins", "/data/kubelet/pod-resources", "/run/cdi"):
        assert paths[mounts[path]["name"]] == path  # the same path as on the node
    assert mounts["/data/calabash"]["mountPropagation"] == "Bidirectional"
    assert {m for m, mount in mounts.items() if mount.get("readOnly")} == {
        "/data/kubelet/pod-resources",
        "/host",
        "/var/run/secrets/kubernetes.io/serviceaccount",
    }
    assert {"--home=/data/calabash", "--kubelet=/data/kubelet", "--specs=/run/cdi", "--host=/host"} <= set(
        agent["args"]
    )


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, "localhost/calabash:0.2.0"),
        ({"repository": "registry.example:5000/gpu/calabash", "tag": "1.2"}, "registry.example:5000/gpu/calabash:1.2"),
        ({"tag": "1.2", "digest": "sha256:" + "a" * 64}, "localhost/calabash@sha256:" + "a" * 64),
    ],
)
def test_every_component_runs_from_the_one_image(image: Manifest, reference: str) -> None:
    used = {c["image"] for c, _ in containers(render({"image": image})) if c["name"] != "scheduler"}
    assert used == {reference}


def test_one_replica_has_no_budget_that_would_hold_up_a_drain() -> None:
    alone = render({"admission": {"replicas": 1}, "planner": {"replicas": 1}})
    assert [m for m in alone if m["kind"] == "PodDisruptionBudget"] == []
    assert len([m for m in render() if m["kind"] == "PodDisruptionBudget"]) == 2


def test_every_class_of_devices_is_one_way_to_give_a_card_and_nvidias_are_there_when_they_are_wanted() -> None:
    def classes(values: Manifest) -> dict[str, Manifest]:
        return {m["metadata"]["name"]: m["spec"] for m in render(values) if m["kind"] == "DeviceClass"}

    ours = {
        "calabash.dev",
        *(f"{word}.calabash.dev" for word in ("vgpu", "brokered", "mps", "timeslice", "mig", "vfio", "observed")),
    }
    assert set(classes({})) == ours
    theirs = {"gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"}
    found = classes({"claims": {"nvidiaClasses": True, "extendedResourceName": "calabash.dev/cards"}})
    assert set(found) == ours | theirs
    assert found["calabash.dev"]["extendedResourceName"] == "calabash.dev/cards"
    assert classes({"claims": {"enabled": False}}) == {}


def test_allocation_api_claims_requires_that_claims_are_enabled() -> None:
    with pytest.raises(RuntimeError, match=r"claims\.enabled must be true"):
        render({"agent": {"allocationApi": "claims"}, "claims": {"enabled": False}})
