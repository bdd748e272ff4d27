"""Tests of the probes in the chart: the programs answer them, and each means something. They need Helm but no cluster."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import Any

import pytest
from tests.kube.charts import Manifest, need_helm, render

from calabash.api.part_metrics import ClusterPart
from calabash.kubernetes.serving_certificates.server import probe_server
from calabash.kubernetes.telemetry import Telemetry, metrics_server
from calabash.transport.listening import listen
from calabash.transport.small_server import SmallServer

EVERYTHING: Manifest = {"server": {"enabled": True}, "metrics": {"enabled": True}}
WITHOUT_READINESS = {"plugin-relay", "scheduler"}  # another container of their pod is ready only if they work
KINDS = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.fixture(autouse=True)
def _helm() -> None:
    need_helm()


def containers() -> dict[str, Manifest]:
    """Return all containers of the components by name."""
    workloads = [m for m in render(EVERYTHING) if m["kind"] in {"DaemonSet", "Deployment"}]
    return {one["name"]: one for m in workloads for one in m["spec"]["template"]["spec"]["containers"]}


def test_every_component_has_a_readiness_probe() -> None:
    found = containers()
    assert {name for name, one in found.items() if "readinessProbe" not in one} == WITHOUT_READINESS
    assert {"agent", "planner", "admission", "metrics"} < set(found)


def test_agent_is_not_restarted_by_a_probe() -> None:
    """A restart of the agent would not help while the kubelet restarts, or after a journal is refused."""
    agent = containers()["agent"]
    assert [kind for kind in KINDS if kind in agent] == ["readinessProbe"]
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def asked(server: SmallServer, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().status


@pytest.mark.parametrize(
    ("state", "answers"),
    [
        ({"alive": True, "ready": True}, {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 200}),
        ({"alive": True, "ready": False}, {"livenessProbe": 200, "readinessProbe": 503}),
        ({"alive": False, "ready": True}, {"livenessProbe": 503}),
    ],
)
@pytest.mark.parametrize("name", ["admission", "metrics"])
def test_probes_of_programs_that_api_servers_call_answer_by_their_state(
    name: str, state: dict[str, bool], answers: dict[str, int]
) -> None:
    part = Telemetry(ClusterPart.ADMISSION if name == "admission" else ClusterPart.METRICS)
    words: dict[str, Any] = {key: (lambda value=value: value) for key, value in state.items()}
    server = probe_server(listen("127.0.0.1", 0), metrics=part.reply, **words)
    server.start()
    try:
        container = containers()[name]
        for kind, status in answers.items():
            assert asked(server, container[kind]["httpGet"]["path"]) == status, kind
    finally:
        server.stop()


@pytest.mark.parametrize(("fault", "status"), [("", 200), ("not registered by the kubelet: device plug-in", 503)])
def test_probe_of_the_agent_answers_by_its_fault(fault: str, status: int) -> None:
    part = Telemetry(ClusterPart.AGENT)
    server = metrics_server(part, tuple, host="127.0.0.1", port=0, fault=lambda: fault)
    server.start()
    try:
        assert asked(server, containers()["agent"]["readinessProbe"]["httpGet"]["path"]) == status
        assert asked(server, "/metrics") == 200
    finally:
        server.stop()
