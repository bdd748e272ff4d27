"""Test that runs the commands of the page about a network on one machine, with a prefix of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.test_docs import script
from tests.daemons.world import World, until
from tests.net import needs

from calabash.cli.main import main
from calabash.controllers.lab import namespaces, supervisor
from calabash.controllers.lab.lab import Lab
from calabash.controllers.networks.settings import NETWORK_FILE

PAGE = "docs/how-to/tenant-networks-lab.md"


@pytest.fixture
def prefix(lab_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    needs.need()
    monkeypatch.setenv("CALABASH_HOME", str(tmp_path / "home"))
    own = "p" + lab_prefix[1:]
    monkeypatch.setenv("CALABASH_NET_PREFIX", own)
    yield own
    left = Lab.of_prefix(own)
    if left is not None:
        left.down()


def calabash(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_every_command_of_the_page_does_what_the_page_says(prefix: str) -> None:
    lines = script(PAGE).replace("cb-", f"{prefix}-")
    assert lines.count("calabash net ") >= 5
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ueEc", lines],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "203.0.113.10" in done.stdout
    assert "Bridge br-int" in done.stdout
    assert namespaces.named(f"{prefix}-") == []


def test_status_names_what_does_not_run_and_fails(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert calabash("net", "up", "--host-count", "1", "--gateways", "0") == 0
    capsys.readouterr()
    assert calabash("net", "status", "-o", "json") == 0
    told = {item["prefix"]: item for item in json.loads(capsys.readouterr().out)["items"]}[prefix]
    assert {row["daemon"] for row in told["daemons"]} >= {"nb", "sb", "northd", "ovn-controller"}
    lab = Lab.of_prefix(prefix)
    assert lab is not None
    os.kill(told["supervisor"], signal.SIGKILL)
    until(lambda: supervisor.supervisor_pid(lab.directory) == 0, what="the supervisor to end")
    lab.host("h1").kill("ovn-controller")
    assert calabash("net", "status") == 1
    said = capsys.readouterr().out
    assert "does not run" in said
    assert "no supervisor runs" in said
    assert calabash("net", "up") == 0
    assert all(lab.daemons().values())
    lab.host("h1").kill("ovn-controller")
    until(lambda: lab.daemons()["h1/ovn-controller"], what="the supervisor to start it")
    capsys.readouterr()
    until(lambda: _restarts(prefix, capsys) == {"ovn-controller": 1}, what="the start to be counted")
    assert calabash("net", "down") == 0
    assert calabash("net", "down") == 0
    assert f"no network {prefix} is up" in capsys.readouterr().out


def _restarts(prefix: str, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Return how many times each daemon was restarted, as `net status` reports it."""
    assert calabash("net", "status", "--prefix", prefix, "-o", "json") == 0
    (told,) = json.loads(capsys.readouterr().out)["items"]
    return {row["daemon"]: row["restarts"] for row in told["daemons"] if row["restarts"]}


def test_pool_has_the_network_from_up_to_down_and_another_network_is_refused(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs.need_appliances()
    assert calabash("net", "up", "--host-count", "1", "--gateways", "1") == 0
    assert "no pool runs yet" in capsys.readouterr().out
    world = World(tmp_path / "home", "1xT4")
    try:
        world.up()
        assert calabash("net", "up") == 0
        assert "uplink world: 198.51.100.0/24" in capsys.readouterr().out
        assert calabash("net", "vpc", "create", "red", "--cidr", "10.0.0.0/16") == 0
        assert calabash("net", "gateway", "create", "red/out", "--snat") == 0
        until(lambda: _states(world) == {"red": True, "red/out": True}, what="living hosts to have the VPC")
        assert namespaces.named(f"{prefix}-g1x") == []
        assert calabash("net", "subnet", "create", "red/a", "--cidr", "10.0.1.0/24") == 0
        assert calabash("net", "port", "create", "red/a/web") == 0
        assert (
            calabash(
                "net", "lb", "create", "red/l7", "--vip", "10.0.1.9:80", "--backends", "web:80", "--check", "http:/"
            )
            == 0
        )
        until(lambda: namespaces.named(f"{prefix}-g1x"), what="the pool to have the balancer kept on its gateway host")
        capsys.readouterr()
        assert calabash("net", "doctor") == 0
        assert capsys.readouterr().out.startswith("CHECK ")  # and no log before it
        lab = Lab.of_prefix(prefix)
        assert lab is not None
        lab.central.kill("northd")
        until(lambda: _restarts(prefix, capsys) == {"northd": 1}, what="the supervisor to start it")
        assert calabash("net", "doctor") == 0
        assert "restarted within 10 minutes: central/northd (1)" in capsys.readouterr().out
        monkeypatch.setenv("CALABASH_NET_PREFIX", other := "q" + prefix[1:])
        assert calabash("net", "up", "--host-count", "1", "--gateways", "0") == 1
        assert "already uses another network" in capsys.readouterr().err
        assert Lab.of_prefix(other) is None
        assert (tmp_path / "home" / NETWORK_FILE).exists()
        monkeypatch.setenv("CALABASH_NET_PREFIX", prefix)
        assert calabash("net", "down") == 0
        assert not (tmp_path / "home" / NETWORK_FILE).exists()
        assert set(_states(world)) == {"red", "red/out"}
    finally:
        world.close()


def _states(world: World) -> dict[str, bool | None]:
    """Return True or False by the name of each VPC and gateway: whether it is realized."""
    items = world.client.get("/v1/networks/objects")["items"]
    return {
        item["name"]: next((c["holds"] for c in item["status"]["conditions"] if c["kind"] == "realized"), None)
        for item in items
        if item["kind"] in ("vpc", "gateway")
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("up", "--prefix", "Not-A-Name"), 2, "not a valid name"),
        (("up", "--host-count", "1000"), 2, "--host-count"),
        (("ctl", "ovn-nbctl", "show"), 3, "net up"),
        (("down", "--prefix", "../x"), 2, "not a valid name"),
    ],
)
def test_what_cannot_be_is_one_line(
    prefix: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    assert calabash("net", *words) == code
    assert said in capsys.readouterr().err
    assert namespaces.named(f"{prefix}-") == []
