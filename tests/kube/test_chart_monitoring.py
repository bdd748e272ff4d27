"""Tests of the objects that the chart renders for Prometheus. The tests need Helm but no cluster."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kube.charts import Manifest, need_helm, one, render

MONITORS = {"ServiceMonitor", "PodMonitor"}
EVERYTHING: Manifest = {"server": {"enabled": True}, "planner": {"shards": ["a"]}}
PEER = {"podSelector": {"matchLabels": {"app": "prometheus"}}}


@pytest.fixture(autouse=True)
def _helm() -> None:
    need_helm()


def values(**metrics: Any) -> Manifest:
    return {**EVERYTHING, "metrics": {"enabled": True, **metrics}}


def workloads(manifests: list[Manifest]) -> list[Manifest]:
    return [m for m in manifests if m["kind"] in {"DaemonSet", "Deployment"}]


def matches(selector: Manifest, labels: Manifest) -> bool:
    return selector.items() <= labels.items()


def test_every_workload_has_one_port_named_metrics() -> None:
    found = workloads(render(values()))
    assert len(found) == 6, "agent, admission, two planners, server, adapter"
    for workload in found:
        containers = workload["spec"]["template"]["spec"]["containers"]
        ports = [port for container in containers for port in container.get("ports", ())]
        assert [port["name"] for port in ports].count("metrics") == 1, workload["metadata"]["name"]
        assert len({port["containerPort"] for port in ports}) == len(ports)


def test_without_monitoring_there_are_no_objects_of_the_operator() -> None:
    assert [m["kind"] for m in render(values()) if m["kind"] in MONITORS] == []


def test_monitors_select_every_workload_once() -> None:
    manifests = render(values(serviceMonitor={"enabled": True, "interval": "15s", "labels": {"release": "p"}}))
    service_monitor = one(manifests, "ServiceMonitor", "calabash")
    pod_monitor = one(manifests, "PodMonitor", "calabash-agent")
    assert service_monitor["metadata"]["labels"]["release"] == pod_monitor["metadata"]["labels"]["release"] == "p"
    (endpoint,) = service_monitor["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "path": "/metrics", "interval": "15s"}
    assert pod_monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"
    chosen = service_monitor["spec"]["selector"]["matchLabels"]
    services = [m for m in manifests if m["kind"] == "Service" and matches(chosen, m["metadata"]["labels"])]
    for workload in workloads(manifests):
        pod = workload["spec"]["template"]["metadata"]["labels"]
        by = [service["metadata"]["name"] for service in services if matches(service["spec"]["selector"], pod)]
        by += ["pods"] * matches(pod_monitor["spec"]["selector"]["matchLabels"], pod)
        assert len(by) == 1, (workload["metadata"]["name"], by)
    for service in services:
        (port,) = service["spec"]["ports"]
        assert (port["name"], port["targetPort"]) == ("metrics", "metrics")


def test_only_the_named_peers_reach_metrics() -> None:
    def ingress(manifest: Manifest) -> list[Manifest]:
        return [
            rule
            for rule in manifest["spec"].get("ingress") or []
            if any(port["port"] == "metrics" for port in rule["ports"])
        ]

    closed = [m for m in render(values()) if m["kind"] == "NetworkPolicy"]
    assert len(closed) == 6
    assert [m["metadata"]["name"] for m in closed if ingress(m)] == []
    opened = render({**values(), "networkPolicies": {"prometheus": [PEER]}})
    policies = [m for m in opened if m["kind"] == "NetworkPolicy"]
    for policy in policies:
        (rule,) = ingress(policy)
        assert rule["from"] == [PEER], policy["metadata"]["name"]
        assert "Ingress" in policy["spec"]["policyTypes"]
