"""Exporter of a real pool, scraped by the real Prometheus: every query of the dashboards and alerts has an answer."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.daemons.world import World, until
from tools import prometheus

from calabash.cli.commands import cli
from calabash.exporter.alerts import ALERTS, rules
from calabash.exporter.grafana import grafana
from calabash.exporter.panels import BOARDS, Query

TOKEN = "t0ken-of-the-scraper"
QUERIES = {f"{b.name}: {p.title} {q.legend}": q.expression for b in BOARDS for p in b.panels for q in p.queries}
UNPRICED = "calabash-tenants: Budget and spending {{tenant}}: spent in {{currency}}"  # there is no tariff


@pytest.fixture(scope="session")
def programs() -> Path:
    """Return the directory of Prometheus and promtool."""
    if not prometheus.fetched():
        reason = "no Prometheus: tools/bootstrap --tests fetches it"
        if os.environ.get("CALABASH_PROMETHEUS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return prometheus.directory()


class Exporter:
    """``calabash serve exporter`` of a pool, on a port that the kernel chooses."""

    def __init__(self, home: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "calabash.cli.main", "serve", "exporter", "--listen", "127.0.0.1:0", *options],
            env={**os.environ, "CALABASH_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("metrics: http://"), said + self.process.stdout.read()
        self.address = said.split("/")[2]

    def get(self, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.address}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def close(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture
def exporter(world: World, tmp_path: Path) -> Iterator[Exporter]:
    """Yield the exporter of the shared pool, for readers with the token."""
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    found = Exporter(world.home, "--token-file", str(token), "--compatible", "dcgm", "--compatible", "hami")
    yield found
    assert found.close() == 0


def with_token(exporter: Exporter) -> str:
    status, text = exporter.get(Authorization=f"Bearer {TOKEN}")
    assert status == 200
    return text


def test_only_who_has_the_token_reads(exporter: Exporter) -> None:
    assert exporter.get()[0] == 401
    assert exporter.get(Authorization="Bearer t0ken-of-another")[0] == 401
    assert exporter.get("/", Authorization=f"Bearer {TOKEN}")[0] == 404
    assert exporter.get("/healthz") == (200, "ok\n")
    assert "calabash_up 1" in with_token(exporter)


def test_a_slice_is_told_from_its_grant_on_and_a_killed_pool_as_down(exporter: Exporter, world: World) -> None:
    _, allocation = world.running("cat", memory_mib=1024, cores=30)
    node = world.client.get("/v1/status")["node"]
    series = f'calabash_slice_memory_used_bytes{{node="{node}",allocation="{allocation["id"]}"'
    until(lambda: series in with_token(exporter), what="the slice to be told")
    world.kill()
    until(lambda: "calabash_up 0" in with_token(exporter), what="the pool to be told as down")
    world.up()
    until(lambda: series in with_token(exporter), what="the slice to be told again")


def test_those_who_never_ask_do_not_keep_others_from_reading(exporter: Exporter) -> None:
    host, port = exporter.address.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port))) for _ in range(200)]
    with contextlib.suppress(OSError):
        silent[0].sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (1 << 20))
    until(lambda: _is_open(exporter), what="to be let in")
    for connection in silent:
        connection.close()


def _is_open(exporter: Exporter) -> bool:
    try:
        return exporter.get("/healthz")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "neither --token-file nor --open is given"),
        (("--token-file", "short"), "has no token"),
        (("--token-file", "absent"), "cannot be read"),
        (("--open", "--listen", "nowhere:x"), "is no address"),
        (("--open", "--key", "k.pem"), "--key is given without --certificate"),
        (("--open", "--certificate", "short"), "cannot be served"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    done = subprocess.run(
        [sys.executable, "-m", "calabash.cli.main", "serve", "exporter", *options],
        env={**os.environ, "CALABASH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said in done.stderr
    assert "hint: " in done.stderr or "cannot be read" in said
    assert done.returncode in ({3} if said == "cannot be read" else {1, 2})
    assert len(done.stderr.splitlines()) <= 3


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "calabash.cli.main", "serve", "exporter", "--open", "--listen", where],
            env={**os.environ, "CALABASH_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert f"{where} cannot be listened on" in done.stderr


# -- with Prometheus -------------------------------------------------------------------------------------------


class Prometheus:
    """Prometheus server that scrapes the targets of its jobs each second, with our alert rules."""

    def __init__(self, programs: Path, directory: Path, **jobs: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        (directory / "rules.yaml").write_text(yaml.safe_dump(rules()))
        scraped = [
            {
                "job_name": name,
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "authorization": {"credentials": TOKEN},
                "static_configs": [{"targets": targets}],
            }
            for name, targets in jobs.items()
        ]
        config = {"rule_files": ["rules.yaml"], "scrape_configs": scraped}
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with (directory / "log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    programs / "prometheus",
                    f"--config.file={directory / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer; None while the server does not answer."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                return None
            pytest.fail(f"{query}: {error.read().decode()}")
        except OSError:
            return None

    def result(self, expression: str) -> list[Any]:
        data = self.ask("query", query=expression)
        return [] if data is None else list(data["result"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)


def _of_all(expression: str) -> str:
    return expression.replace('"$node"', '".*"').replace('"$tenant"', '".*"')


def test_every_query_of_every_dashboard_has_data_and_every_alert_is_understood(
    programs: Path, world: World, exporter: Exporter, tmp_path: Path
) -> None:
    world.running("cat", memory_mib=1024, cores=30)
    world.client.put("/v1/tenants/observed", {"guarantee": 1, "limit": 2, "budget": "5000EUR"})
    world.client.put("/v1/tenants/observed/projects/train", {"guarantee": 0.5})
    server = Prometheus(programs, tmp_path, calabash=[exporter.address])
    try:
        until(lambda: len(server.result("calabash_up[1m]")) > 0, what="the first scrape")
        samples = "min(count_over_time(calabash_slice_throttled_seconds_total[1m])) >= 2"
        until(lambda: server.result(samples), what="two scrapes of the slice")
        empty = [name for name, query in QUERIES.items() if not server.result(_of_all(query))]
        assert empty == [UNPRICED]
        groups = until(lambda: server.ask("rules"), what="the rules")["groups"]
        assert {rule["name"] for rule in groups[0]["rules"]} == {alert.name for alert in ALERTS}
        for alert in ALERTS:
            server.result(alert.expression)  # fails if it is not understood
    finally:
        server.close()
        world.client.delete("/v1/tenants/observed/projects/train")
        world.client.delete("/v1/tenants/observed")


@contextlib.contextmanager
def _served(page: str) -> Iterator[str]:
    """Serve a constant metrics page; yield its address."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _figures(server: Prometheus, query: Query) -> dict[str, str]:
    """Return the value of each series of a panel, by the series' legend."""
    series = server.result(_of_all(query.expression))
    found = {}
    for one in series:
        legend = query.legend or json.dumps(one["metric"], sort_keys=True)
        for name, value in one["metric"].items():
            legend = legend.replace(f"{{{{{name}}}}}", value)
        assert legend not in found, f"{query.expression}: two series are {legend!r}: {series}"
        found[legend] = one["value"][1]
    return found


def test_panels_show_the_same_with_one_exporter_and_with_two_exporters_and_two_jobs(
    programs: Path, world: World, exporter: Exporter, tmp_path: Path
) -> None:
    world.client.put("/v1/queues/observed-parent", {})
    world.client.put("/v1/queues/observed-parent/observed-leaf", {"deserved": 1})
    world.client.put("/v1/tenants/observed", {"guarantee": 1, "limit": 2, "budget": "5000EUR"})
    world.client.put("/v1/tenants/observed/projects/train", {"guarantee": 0.5})
    world.running("cat", memory_mib=1024, cores=30)
    try:
        first = with_token(exporter)
    finally:
        world.client.delete("/v1/tenants/observed/projects/train")
        world.client.delete("/v1/tenants/observed")
        world.client.delete("/v1/queues/observed-parent/observed-leaf")
        world.client.delete("/v1/queues/observed-parent")
    node = re.search(r'calabash_pool_info{node="([^"]+)"', first)
    assert node
    first += f'calabash_tenant_spent{{node="{node[1]}",tenant="observed",currency="EUR"}} 12.5\n'
    second = re.sub(r'(allocation|device_uuid)="', r'\1="other-', first.replace(f'node="{node[1]}"', 'node="other"'))
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(_served(page)) for page in (first, second, first, second)]
        servers = []
        for name, jobs in {
            "once": {"calabash": pages[:2]},
            "twice": {"calabash": pages, "again": pages[:2]},
        }.items():
            (tmp_path / name).mkdir()
            servers.append(Prometheus(programs, tmp_path / name, **jobs))
            stack.callback(servers[-1].close)
        for server, targets in zip(servers, (2, 6), strict=True):
            seen = f"count(count_over_time(calabash_up[1m]) >= 2) == {targets}"
            until(partial(server.result, seen), what="two scrapes of every target")
        for board in BOARDS:
            for panel in board.panels:
                for query in panel.queries:
                    once, twice = (_figures(server, query) for server in servers)
                    assert once, f"{panel.title} has no data"
                    assert once == twice, f"{panel.title}: {query.expression}"


def _sum(server: Prometheus, expression: str) -> float:
    result = server.result(f"sum({expression})")
    return round(float(result[0]["value"][1]), 3) if result else -1.0


def _equals(told: Callable[[], float], expected: float) -> bool:
    return told() == expected


def test_sums_of_queue_tenant_and_project_series_are_the_truth(
    programs: Path, world: World, exporter: Exporter, tmp_path: Path
) -> None:
    """The series of a parent queue includes the devices of its child queue, that of a tenant those of its projects."""
    parent, leaf = "summed-parent", "summed-parent/summed-leaf"
    world.client.put(f"/v1/queues/{parent}", {"deserved": 1})
    world.client.put(f"/v1/queues/{leaf}", {"deserved": 0.5})
    world.client.put("/v1/tenants/summed", {"guarantee": 1})
    world.client.put("/v1/tenants/summed/projects/train", {"guarantee": 0.5})
    server = Prometheus(programs, tmp_path, calabash=[exporter.address])
    held = [
        world.running("cat", memory_mib=8192, cores=20, queue=leaf)[0],
        world.running("cat", memory_mib=8192, cores=20, tenant="summed", project="train")[0],
        world.running("cat", memory_mib=8192, cores=20, tenant="summed")[0],
        world.run("cat", gpus=2, queue=leaf, wait_s=600),
    ]
    try:
        until(lambda: any(a["state"] == "pending" for a in world.allocations()), what="a request to wait")
        queues = {q["name"]: q for q in world.client.get("/v1/queues")["items"]}
        tops = [q for q in queues.values() if q["parent"] not in queues]
        expected = {key: round(sum(q[key] for q in tops), 3) for key in ("allocated", "pending", "deserved")}
        assert expected["allocated"] == pytest.approx(3 * queues[leaf]["allocated"], abs=0.002)
        assert expected["pending"] == 2
        own = queues["summed"]["allocated"], queues["summed/train"]["allocated"]
        for key in ("allocated", "pending", "deserved"):
            told = partial(_sum, server, f"calabash_queue_{key}_devices")
            until(partial(_equals, told, expected[key]), what=f"the sum of {key}: {expected[key]}")
        assert _sum(server, "calabash_tenant_allocated_devices") == own[0]
        assert _sum(server, "calabash_project_allocated_devices") == own[0]
        assert _sum(server, 'calabash_project_allocated_devices{project="train"}') == own[1]
        of_root = "* on (node, queue) group_left (root) calabash_queue_info"
        tree = server.result(f"sum by (root) (calabash_queue_allocated_devices {of_root})")
        found = {one["metric"]["root"]: round(float(one["value"][1]), 3) for one in tree}
        assert (found[parent], found["summed"]) == (queues[parent]["allocated"], own[0])
    finally:
        server.close()
        for program in held:
            program.kill()
        until(lambda: not world.allocations(), what="everything to end")
        for path in ("tenants/summed/projects/train", "tenants/summed", f"queues/{leaf}", f"queues/{parent}"):
            world.client.delete(f"/v1/{path}")


def _told(exporter: Exporter, series: str) -> float:
    """Return the sum of the series whose names and labels begin with a text."""
    lines = [line for line in with_token(exporter).splitlines() if line.startswith(series)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _grows(told: Callable[[], float], beyond: float) -> bool:
    return told() > beyond


def test_counters_of_gpu_time_and_waits_agree_with_usage_and_survive_a_killed_pool(
    programs: Path, world: World, exporter: Exporter, tmp_path: Path
) -> None:
    """The sum over tenants equals ``/v1/usage``, also across a restart of the pool, which resets the counters to 0."""
    series = "calabash_tenant_gpu_seconds_total"
    seconds = partial(_told, exporter, f"{series}{{")
    began_s, counted, answered = time.time(), seconds(), _granted_in(exporter)
    program, _ = world.running("cat", memory_mib=1024, cores=50)
    until(lambda: _granted_in(exporter) == answered + 1, what="the grant to be counted")
    server = Prometheus(programs, tmp_path, calabash=[exporter.address])
    try:
        until(lambda: _grows(seconds, counted + 1.5), what="three seconds with half a device")
        usage = partial(_used_since, world, began_s)
        before, told, after = usage(), seconds() - counted, usage()
        # The exporter's reading is up to a second old, and so is what the pool has measured.
        assert before - 1.5 <= told <= after + 1.5
        until(lambda: server.result(f"rate({series}[10s]) > 0.4"), what="the rate of half a device")
        world.kill()
        world.up()
        until(lambda: _grows(seconds, 0.5), what="the counter to begin again")
        until(lambda: server.result(f"sum(resets({series}[5m])) > 0"), what="the reset to be scraped")
        increase = float(server.result(f"sum(increase({series}[5m]))")[0]["value"][1])
        assert increase < 2 * (_used_since(world, began_s) + 5)  # Prometheus extrapolates
    finally:
        server.close()
        program.kill()


def _granted_in(exporter: Exporter) -> float:
    page = with_token(exporter)
    found = re.findall(r'calabash_queue_wait_seconds_count{[^}]*queue="default",outcome="granted"} (\d+)', page)
    return float(found[0])


def _used_since(world: World, began_s: float) -> float:
    items = world.client.get(f"/v1/usage?by=tenant&from={began_s}&to={time.time() + 60}")["items"]
    return float(sum(one["gpu_hours"] for one in items) * 3600)


def test_promtool_finds_no_fault_in_the_page_and_the_rules(
    programs: Path, world: World, exporter: Exporter, tmp_path: Path
) -> None:
    world.running("cat", memory_mib=1024, cores=30)
    page = "\n".join(line for line in with_token(exporter).splitlines() if "calabash_" in line) + "\n"
    done = subprocess.run(
        [programs / "promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    done = subprocess.run(
        [programs / "promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


SLICE = '{node="n", allocation="a", device_uuid="g", tenant="t"}'


@pytest.mark.parametrize(
    ("alert", "series", "at", "fires"),
    [
        ("CalabashPoolDown", [("calabash_up", "1 1 0x20")], "4m", True),
        ("CalabashPoolDown", [("calabash_up", "1x20")], "4m", False),
        ("CalabashExporterDown", [("other", "1x20")], "6m", True),
        ("CalabashDeviceNotHealthy", [('calabash_device_healthy{node="n"}', "0x20")], "6m", True),
        ("CalabashDeviceNotHealthy", [('calabash_device_healthy{node="n"}', "0x2 1x20")], "6m", False),
        (
            "CalabashHeldWithoutUse",
            [(f"calabash_slice_core_used_ratio{SLICE}", "0x90"), (f"calabash_slice_info{SLICE}", "1x90")],
            "70m",
            True,
        ),
        (
            "CalabashHeldWithoutUse",
            [(f"calabash_slice_core_used_ratio{SLICE}", "0x40 0.5 0x90"), (f"calabash_slice_info{SLICE}", "1x150")],
            "70m",
            False,
        ),
        (  # held for ten minutes only
            "CalabashHeldWithoutUse",
            [(f"calabash_slice_core_used_ratio{SLICE}", "_x60 0x90"), (f"calabash_slice_info{SLICE}", "_x60 1x90")],
            "70m",
            False,
        ),
        # A new request in a leaf queue; the parent queue contains it.
        (
            "CalabashWaitingLong",
            [(f"calabash_queue_pending_devices{{{q}}}", "1x60") for q in ('queue="all"', 'queue="all/leaf"')]
            + [(f"calabash_queue_longest_wait_seconds{{{q}}}", v) for q, v in (('queue="all/leaf"', "0+60x60"),)],
            "20m",
            False,
        ),
        (
            "CalabashWaitingLong",
            [(f"calabash_queue_pending_devices{{{q}}}", "1x60") for q in ('queue="all"', 'queue="all/leaf"')]
            + [
                ('calabash_queue_longest_wait_seconds{queue="all/leaf"}', "0+60x60"),
                ('calabash_queue_longest_wait_seconds{queue="all"}', "0x60"),
            ],
            "40m",
            True,
        ),
        # Many short waits, one after the other.
        (
            "CalabashWaitingLong",
            [
                ('calabash_queue_pending_devices{queue="q"}', "1x90"),
                ('calabash_queue_longest_wait_seconds{queue="q"}', "0+60x20 0+60x20 0+60x20"),
            ],
            "59m",
            False,
        ),
        # Held since before Prometheus began to scrape, and idle for minutes only.
        (
            "CalabashHeldWithoutUse",
            [(f"calabash_slice_core_used_ratio{SLICE}", "0x9"), (f"calabash_slice_info{SLICE}", "1x9")],
            "5m",
            False,
        ),
        # One of two devices of an allocation is used.
        (
            "CalabashHeldWithoutUse",
            [
                (f"calabash_slice_core_used_ratio{SLICE}", "0x90"),
                (f"calabash_slice_core_used_ratio{SLICE.replace('g', 'h')}", "0.5x90"),
            ],
            "80m",
            False,
        ),
        (
            "CalabashHeldWithoutUse",
            [
                (f"calabash_slice_core_used_ratio{SLICE}", "0x90"),
                (f"calabash_slice_core_used_ratio{SLICE.replace('g', 'h')}", "0x90"),
            ],
            "80m",
            True,
        ),
        ("CalabashStrangerOnDevice", [('calabash_device_strangers{node="n"}', "1x60")], "10m", True),
        ("CalabashMemoryDenied", [(f"calabash_slice_memory_denied_total{SLICE}", "0 0 5x20")], "5m", True),
        (
            "CalabashTenantBelowGuarantee",
            [
                ('calabash_tenant_pending_devices{tenant="t"}', "1x60"),
                ('calabash_tenant_allocated_devices{tenant="t"}', "1x60"),
                ('calabash_tenant_guarantee_devices{tenant="t"}', "2x60"),
            ],
            "40m",
            True,
        ),
        (
            "CalabashTenantBelowGuarantee",
            [
                ('calabash_tenant_pending_devices{tenant="t"}', "1x60"),
                ('calabash_tenant_allocated_devices{tenant="t"}', "3x60"),
                ('calabash_tenant_guarantee_devices{tenant="t"}', "2x60"),
            ],
            "40m",
            False,
        ),
        (  # right after the start of the pool, and of Prometheus
            "CalabashTenantBelowGuarantee",
            [
                ('calabash_tenant_pending_devices{tenant="t"}', "1x60"),
                ('calabash_tenant_allocated_devices{tenant="t"}', "1x60"),
                ('calabash_tenant_guarantee_devices{tenant="t"}', "2x60"),
            ],
            "10m",
            False,
        ),
        (  # a project is part of its tenant
            "CalabashTenantBelowGuarantee",
            [
                (f"calabash_{labels}", f"{value}x60")
                for what, value in (("pending", 1), ("allocated", 1), ("guarantee", 2))
                for labels in (
                    f'tenant_{what}_devices{{tenant="t"}}',
                    f'project_{what}_devices{{tenant="t",project="p"}}',
                )
            ],
            "40m",
            True,
        ),
        (
            "CalabashBudgetNearlySpent",
            [
                ('calabash_tenant_spent{tenant="t",currency="EUR"}', "95x9"),
                ('calabash_tenant_budget{tenant="t",currency="EUR"}', "100x9"),
            ],
            "5m",
            True,
        ),
        (
            "CalabashBudgetNearlySpent",
            [
                ('calabash_tenant_spent{tenant="t",currency="EUR"}', "5x9"),
                ('calabash_tenant_budget{tenant="t",currency="EUR"}', "0x9"),
            ],
            "5m",
            False,
        ),
        (
            "CalabashNetworkDaemonDown",
            [('calabash_network_affected_vpcs{node="n", reason="northd_down"}', "0 3x20")],
            "4m",
            True,
        ),
        (  # the pool is started again soon
            "CalabashNetworkDaemonDown",
            [('calabash_network_affected_vpcs{node="n", reason="northd_down"}', "0 3 0x20")],
            "4m",
            False,
        ),
        ("CalabashDeviceHot", [('calabash_device_temperature_celsius{node="n"}', "95x60")], "15m", True),
    ],
)
@pytest.mark.parametrize("scraped", ["once", "by two exporters and by two jobs"])
def test_alerts_fire_when_they_should_and_once_however_often_a_pool_is_scraped(
    programs: Path, tmp_path: Path, *, alert: str, series: list[tuple[str, str]], at: str, fires: bool, scraped: str
) -> None:
    if scraped != "once":
        # Availability is per exporter: two pools that are down are two.
        exporters = ["one"] if alert == "CalabashPoolDown" else ["one", "two"]
        series = [
            (f'{name}{{{labels.rstrip("}")}{"," * bool(labels)}instance="{exporter}",job="{job}"}}', values)
            for name, _, labels, values in ((*name.partition("{"), values) for name, values in series)
            for exporter in exporters
            for job in ("calabash", "again")
        ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {"expr": firing, "eval_time": at, "exp_samples": [{"labels": "{}", "value": int(fires)}]},
        ],
    }
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [programs / "promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_are_grafanas_and_written_where_asked(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["dashboards", "export", str(tmp_path / "boards")])
    assert done.exit_code == 0, done.output
    for board in BOARDS:
        written = json.loads((tmp_path / "boards" / f"{board.name}.json").read_text())
        assert written == json.loads(json.dumps(grafana(board)))
        read = Dashboard.from_json(written)
        assert read.title == board.title
        assert read.panels is not None
        assert len(read.panels) == len(board.panels)
    assert yaml.safe_load((tmp_path / "boards" / "alerts.yaml").read_text()) == rules()


def test_panels_do_not_lie_on_each_other() -> None:
    for board in BOARDS:
        taken = [
            (x, y)
            for panel in grafana(board)["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(taken) == len(set(taken)), board.title
        assert max(x for x, _ in taken) < 24
