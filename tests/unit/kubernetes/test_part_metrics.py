"""Tests of metrics: every program of the cluster serves its documented metrics, and no others."""

from __future__ import annotations

import datetime
import http.client
import re
import subprocess
import threading
import time
from collections.abc import Callable
from http.client import HTTPSConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from tests.unit.kubernetes.admission.test_program import NAMES, SETTINGS, connect
from tests.unit.kubernetes.admission.test_program import kube as kube  # noqa: PLC0414 - a fixture
from tests.unit.kubernetes.metrics.test_metrics import SYSTEM, authorities, certificate
from tests.unit.kubernetes.metrics.test_metrics import World as AdapterWorld
from tests.unit.kubernetes.server.served import ServedCluster
from tools import prometheus

import calabash
from calabash.adapters.exposition import CONTENT_TYPE
from calabash.adapters.kube.http.counts import KubeCounts
from calabash.api import part_metrics as m
from calabash.api.part_metrics import PART_METRICS, ClusterPart, PartMetric, metrics_of
from calabash.kubernetes.admission.run import AdmissionProgram
from calabash.kubernetes.metrics.run import API_SERVICE, REGISTERED, SERVICE, MetricsProgram
from calabash.kubernetes.node_plugin.reports.metrics import AgentFigures
from calabash.kubernetes.node_plugin.service import AgentService
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.kubernetes.server.metrics import ServerFigures
from calabash.kubernetes.telemetry import Telemetry
from calabash.model.device import Health
from calabash.node.snapshot import NodeSnapshot
from calabash.transport.listening import listen
from calabash_testing.api_server.client import MemoryKube

WAIT_S = 60.0
TENANT_WORDS = ("team", "acme", "default")  # names of namespaces and queues of these tests


def until(check: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def probe(port: int) -> tuple[int, str]:
    """Return the status and the text of ``/readyz``."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    line.request("GET", "/readyz")
    reply = line.getresponse()
    return reply.status, reply.read().decode()


def scrape(port: int) -> str:
    """Return the metrics page of a server; wait until it listens."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        try:
            line.request("GET", "/metrics")
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s, f"nobody listens on port {port}"
            time.sleep(0.02)
    reply = line.getresponse()
    text = reply.read().decode()
    line.close()
    assert (reply.status, reply.getheader("Content-Type")) == (200, CONTENT_TYPE)
    return text


def figures(text: str) -> dict[str, float]:
    """Return the values of all series, by series."""
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines(text))}


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def check(part: ClusterPart, text: str) -> None:
    """Check that the page has exactly the documented families and labels, and that promtool accepts it."""
    served = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert served == {metric.name: metric.kind for metric in metrics_of(part)}
    by_name = {metric.name: metric for metric in metrics_of(part)}
    for line in lines(text):
        name = line.partition(" ")[0].partition("{")[0]
        metric = by_name.get(name) or by_name[re.sub(r"_(bucket|sum|count)$", "", name)]
        more = ("le",) if name == f"{metric.name}_bucket" else ()
        assert tuple(re.findall(r'[{,](\w+)="', line)) == (*metric.labels, *more), line
    assert f'calabash_build_info{{part="{part}",version="{calabash.__version__}"}} 1\n' in text
    assert figures(text)["process_resident_memory_bytes"] > 1 << 20
    assert abs(figures(text)["process_start_time_seconds"] - time.time()) < 86400
    assert [word for word in TENANT_WORDS if f'"{word}"' in text] == [], "these ports ask for no credential"
    if prometheus.fetched():
        told = subprocess.run(
            [prometheus.directory() / "promtool", "check", "metrics"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (told.returncode, told.stdout + told.stderr) == (0, "")


def test_admission_serves_its_metrics_on_the_port_of_probes(kube: MemoryKube) -> None:
    listener = listen("127.0.0.1", 0)
    program = AdmissionProgram(
        kube, SETTINGS, listener=listen("127.0.0.1", 0), probes=listener, names=NAMES, refresh_s=0.02
    )
    port = listener.getsockname()[1]
    program.start()
    try:
        until(program.ready)
        line: HTTPSConnection = connect(program, kube)
        line.request("POST", "/validate", body=b"{")
        assert line.getresponse().status == 400
        text = scrape(port)
    finally:
        program.stop()
    check(ClusterPart.ADMISSION, text)
    found = figures(text)
    assert found['calabash_admission_requests_total{path="validate",result="unreadable"}'] == 1
    assert found['calabash_admission_request_seconds_count{path="validate"}'] == 1
    assert found["calabash_certificate_expiry_timestamp_seconds"] > time.time()
    assert found['calabash_kube_lists_total{kind="namespaces"}'] >= 1


def test_adapter_serves_its_metrics_on_the_port_of_probes(tmp_path: Path) -> None:
    world = AdapterWorld()
    target = {"namespace": SYSTEM, "name": SERVICE}
    world.client.create(API_SERVICE, {"metadata": {"name": REGISTERED}, "spec": {"service": target}})
    authorities(world, certificate(tmp_path, "front-proxy-client")[0])
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    program = MetricsProgram(world.client, namespace=SYSTEM, host="127.0.0.1", port=0, probes=listener, refresh_s=0.05)
    program.start()
    try:
        until(program.ready)
        text = scrape(port)
    finally:
        program.stop()
    check(ClusterPart.METRICS, text)
    assert figures(text)["calabash_certificate_expiry_timestamp_seconds"] > time.time()
    assert figures(text)['calabash_kube_watches_total{kind="gpunodes"}'] >= 1


def test_server_serves_its_metrics(tmp_path: Path) -> None:
    cluster = ServedCluster(tmp_path)
    cluster.start(usage_port=0, metrics_port=0)
    try:
        cluster.admin.get("/v1/status")
        text = scrape(cluster.metrics_port)
    finally:
        cluster.stop()
    check(ClusterPart.SERVER, text)
    assert figures(text)['calabash_server_requests_total{method="GET",code="200"}'] >= 1
    assert figures(text)["calabash_server_usage_records_total"] == 0


def test_server_counts_unknown_methods_together_and_the_age_of_the_oldest_report() -> None:
    now = [1000.0]
    made = ServerFigures(lambda: ["a", "b"], now_s=lambda: now[0])
    made.collects(lambda: {"a": 1500.0, "gone": 1.0}, tuple)
    now[0] = 1600.0
    page = made.telemetry.page(made._gather).decode()
    assert figures(page)["calabash_server_oldest_node_report_seconds"] == 600, "b was silent since the start"

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        made.counting(fails)({"type": "http", "method": "GET-ME"}, None, None).send(None)  # type: ignore[attr-defined]
    page = made.telemetry.page().decode()
    assert figures(page)['calabash_server_requests_total{method="other",code="0"}'] == 1


def test_agent_that_cannot_serve_its_devices_serves_its_metrics(tmp_path: Path) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    settings = AgentSettings(
        node="n",
        home=tmp_path / "home",
        host=tmp_path,
        kubeconfig=tmp_path / "config",
        kubelet=tmp_path,
        specs=tmp_path,
        sim_state=tmp_path / "no-such-node.json",
        metrics_port=0,
    )
    service = AgentService(settings)
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        until(lambda: service.metrics_address[1])
        port = service.metrics_address[1]
        until(lambda: 'method="PATCH",code="0"' in scrape(port) or 'code="0"' in scrape(port))
        text = scrape(port)
        assert probe(port) == (503, "the agent cannot serve: not_found")
    finally:
        service.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    check(ClusterPart.AGENT, text)
    assert figures(text)["calabash_agent_ready"] == 0


def snapshot(*uses: tuple[str, int, float]) -> NodeSnapshot:
    """Return a node with a healthy device that has one slice for each use."""
    allocations = [
        SimpleNamespace(record=SimpleNamespace(id=name), use=(SimpleNamespace(denied=denied, throttled_s=throttled),))
        for name, denied, throttled in uses
    ]
    device = SimpleNamespace(device=SimpleNamespace(health=Health.HEALTHY), held=allocations)
    return cast("NodeSnapshot", SimpleNamespace(devices=(device,), allocations=tuple(allocations)))


def test_agent_counts_limits_over_slices_that_come_and_go_and_registrations_over_its_starts() -> None:
    made = AgentFigures()

    def now() -> dict[str, float]:
        return figures(made.telemetry.page(lambda: made._now).decode())

    made.observe(snapshot(("a", 3, 1.5)), ready=True, registrations=1, waiting=7)
    made.observe(snapshot(("a", 5, 2.0), ("b", 1, 0.0)), ready=True, registrations=2, waiting=7)
    made.observe(snapshot(("b", 1, 0.25)), ready=True, registrations=1)
    found = now()
    assert found["calabash_agent_memory_denied_total"] == 6
    assert found["calabash_agent_throttled_seconds_total"] == 2.25
    assert found["calabash_agent_kubelet_registrations_total"] == 3
    assert found["calabash_agent_slices"] == 1
    assert found['calabash_agent_devices{health="healthy"}'] == 1
    assert found["calabash_agent_usage_records_waiting"] == 0


def test_buckets_of_a_histogram_are_cumulative_and_the_last_is_the_count() -> None:
    telemetry = Telemetry(ClusterPart.PLANNER)
    for value in (0.001, 0.0011, 0.3, 100.0):
        telemetry.observe(m.PLANNER_DECISIONS, value)
    found = figures(telemetry.page().decode())
    name = m.PLANNER_DECISIONS.name
    buckets = [found[f'{name}_bucket{{le="{bound}"}}'] for bound in (*m.PLANNER_DECISIONS.buckets, "+Inf")]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[1], buckets[-2], buckets[-1]) == (1, 2, 3, 4)
    assert found[f"{name}_count"] == 4
    assert found[f"{name}_sum"] == pytest.approx(100.3021)


def test_metric_of_another_part_is_refused() -> None:
    telemetry = Telemetry(ClusterPart.AGENT)
    with pytest.raises(KeyError):
        telemetry.count(m.PLANNER_FAILURES)
    with pytest.raises(KeyError, match="does not serve calabash_planner_leads"):
        telemetry.page(lambda: [(m.PLANNER_LEADS, (), 1)])


def test_catalogue_lists_every_metric_once() -> None:
    declared = [value for value in vars(m).values() if isinstance(value, PartMetric)]
    assert {metric.name for metric in declared} == {metric.name for metric in PART_METRICS}
    assert len(PART_METRICS) == len({metric.name for metric in PART_METRICS})
    assert all((metric.kind == "histogram") == bool(metric.buckets) for metric in PART_METRICS)
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in PART_METRICS)


def test_silence_is_that_of_the_mirror_of_a_kind_that_heard_least() -> None:
    counts = KubeCounts()
    first, second = object(), object()
    counts.begin(first, "pods", lambda: 3.0)
    counts.begin(second, "pods", lambda: 70.0)
    assert counts.silent_s() == {"pods": 70.0}
    counts.end(second)
    assert counts.silent_s() == {"pods": 3.0}


def test_page_of_a_program_has_its_own_age() -> None:
    began = figures(Telemetry(ClusterPart.AGENT).page().decode())["process_start_time_seconds"]
    assert began <= datetime.datetime.now(datetime.UTC).timestamp()
