"""Dashboard and alerts of a cluster's programs, on the real Prometheus and promtool."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from functools import partial
from pathlib import Path

import yaml
from click.testing import CliRunner
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.daemons.test_exporter import Prometheus, _figures, _served
from tests.daemons.test_exporter import programs as programs  # noqa: PLC0414 - a fixture
from tests.daemons.world import until

from calabash.api import part_metrics as m
from calabash.api.part_metrics import ClusterPart, metrics_of
from calabash.cli.commands import cli
from calabash.exporter.cluster_alerts import CLUSTER_ALERTS, cluster_rules
from calabash.exporter.cluster_panels import CLUSTER
from calabash.exporter.grafana import grafana
from calabash.kubernetes.telemetry import Telemetry

VALUES = {"stage": "waiting", "health": "healthy", "result": "ok", "path": "mutate", "kind": "pods"}


def page(part: ClusterPart, pod: str) -> str:
    """Return a metrics page of a program with a series of each metric, with the name of the pod."""
    telemetry = Telemetry(part)
    for metric in metrics_of(part):
        labels = [VALUES.get(label, "GET" if label == "method" else "200") for label in metric.labels]
        if metric.kind == "histogram":
            telemetry.observe(metric, 0.02, *labels)
        elif metric is not m.BUILD_INFO and not metric.name.startswith("process_"):
            telemetry.count(metric, *labels, by=3)
    text = telemetry.page().decode()
    text = re.sub(r"^(?!#)(\w+) ", rf'\1{{pod="{pod}"}} ', text, flags=re.MULTILINE)
    return re.sub(r"^(?!#)(\w+){(?!pod=)", rf'\1{{pod="{pod}",', text, flags=re.MULTILINE)


def test_panels_of_a_cluster_have_data_and_show_the_same_with_two_jobs(programs: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        pages = [
            stack.enter_context(_served(page(part, f"{part}-{number}"))) for part in ClusterPart for number in (0, 1)
        ]
        servers = []
        for name, jobs in {"once": {"cluster": pages}, "twice": {"cluster": pages, "again": pages}}.items():
            (tmp_path / name).mkdir()
            servers.append(Prometheus(programs, tmp_path / name, **jobs))
            stack.callback(servers[-1].close)
        for server, targets in zip(servers, (len(pages), 2 * len(pages)), strict=True):
            seen = f"count(count_over_time(calabash_build_info[1m]) >= 3) == {targets}"
            until(partial(server.result, seen), what="three scrapes of every target")
        for panel in CLUSTER.panels:
            for query in panel.queries:
                if "time()" in query.expression or "process_" in query.expression:  # figures that change by themselves
                    assert servers[0].result(query.expression), panel.title
                    continue
                once, twice = (_figures(server, query) for server in servers)
                assert once, f"{panel.title} has no data"
                assert once == twice, f"{panel.title}: {query.expression}"
        for alert in CLUSTER_ALERTS:
            servers[0].result(alert.expression)  # fails if it is not understood


def test_promtool_accepts_the_alerts_of_a_cluster_and_each_fires_once(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(cluster_rules()))
    done = subprocess.run(
        [programs / "promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    def series(metric: m.PartMetric, values: str, labels: str = "") -> list[dict[str, str]]:
        return [{"series": f'{metric.name}{{job="{job}",pod="p"{labels}}}', "values": values} for job in ("one", "two")]

    fired = {
        "CalabashNoPlannerLeads": series(m.PLANNER_LEADS, "0x60"),
        "CalabashDecisionsFail": series(m.PLANNER_FAILURES, "0x30 1x30"),
        "CalabashAdmissionFails": series(m.ADMISSION_REQUESTS, "0x55 4x5", ',path="mutate",result="failed"'),
        "CalabashCertificateEnds": series(m.CERTIFICATE_EXPIRY, "7000x120"),
        "CalabashAgentNotServing": series(m.AGENT_READY, "0x60"),
        "CalabashAgentReconnects": series(m.AGENT_REGISTRATIONS, "1+1x60"),
        "CalabashUsageWaits": series(m.AGENT_USAGE_WAITING, "20000x60"),
        "CalabashNodeReportsLate": series(m.SERVER_OLDEST_REPORT, "1000x60"),
        "CalabashApiServerSilent": series(m.KUBE_SILENT, "400x60", ',kind="pods"'),
    }
    tests = [
        {
            "interval": "1m",
            "input_series": found,
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                    "eval_time": "70m" if name == "CalabashCertificateEnds" else "58m",
                    "exp_samples": [{"labels": "{}", "value": 0 if name == "CalabashDecisionsFail" else 1}],
                }
            ],
        }
        for name, found in fired.items()
    ]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    done = subprocess.run(
        [programs / "promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_and_alerts_of_a_cluster_are_written_where_asked(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["dashboards", "export", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "calabash-cluster.json").read_text())
    assert written == json.loads(json.dumps(grafana(CLUSTER)))
    assert len(Dashboard.from_json(written).panels or ()) == len(CLUSTER.panels)
    assert yaml.safe_load((tmp_path / "cluster-alerts.yaml").read_text()) == cluster_rules()
