"""Tests of interrupted starts of a lab, obstacles to a start, and two labs at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net import needs

from calabash.cli.main import main
from calabash.controllers.lab import daemons, host, namespaces
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
from calabash.model.errors import CalabashError, Reason


@pytest.fixture
def small(lab_prefix: str, tmp_path: Path) -> Iterator[Lab]:
    """Yield a lab of one host that is not up; remove it at the end."""
    needs.need()
    made = Lab(prefix="v" + lab_prefix[1:], directory=tmp_path / "l", hosts=("h1",), gateways=())
    yield made
    made.down()


_UP = """
import sys
from pathlib import Path
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import register
Lab(prefix=sys.argv[1], directory=Path(sys.argv[2]), hosts=("h1",), gateways=()).up()
"""


@pytest.mark.parametrize("file", ["lab.json", "central/nb.db", "h1/db.sock", "h1/br-int.mgmt"])
def test_up_that_is_killed_anywhere_is_followed_by_one_that_works(small: Lab, file: str) -> None:
    killed = subprocess.Popen([sys.executable, "-c", _UP, small.record.prefix, str(small.directory)])
    end = time.monotonic() + 60
    while not (small.directory / file).exists() and killed.poll() is None:
        assert time.monotonic() < end, f"no {file}"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    small.up()
    assert all(small.daemons().values())
    assert small.down()
    assert namespaces.named(small.record.prefix + "-") == []
    assert daemons.kill_all(small.directory) == 0


def test_up_that_fails_leaves_nothing_and_says_why(small: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "HOST_DAEMONS", ("ovsdb-server", "ovs-vswitchd"))
    with pytest.raises(CalabashError, match="hosts have no daemon ovn-controller"):
        small.up()
    assert namespaces.named(small.record.prefix + "-") == []
    assert not small.directory.exists()
    assert daemons.kill_all(small.directory) == 0


def test_lab_whose_daemons_were_all_killed_comes_back(small: Lab) -> None:
    small.up()
    assert daemons.kill_all(small.directory) == 6
    small.up()
    assert all(small.daemons().values())


def test_namespace_in_the_way_is_named_and_stays(small: Lab) -> None:
    name = f"{small.record.prefix}-h1"
    namespaces.ip([("netns", "add", name)])
    try:
        with pytest.raises(CalabashError, match=name) as refused:
            small.up()
        assert refused.value.reason is Reason.CONFLICT
        assert refused.value.hint
        assert not small.down()
        assert namespaces.exists(name)
    finally:
        namespaces.ip([("netns", "del", name)])


def test_prefix_is_one_lab_of_one_shape(small: Lab, tmp_path: Path) -> None:
    small.up()
    elsewhere = Lab(prefix=small.record.prefix, directory=tmp_path / "m", hosts=("h1",), gateways=())
    larger = Lab(prefix=small.record.prefix, directory=small.directory, hosts=("h1", "h2"), gateways=())
    for other in (elsewhere, larger):
        with pytest.raises(CalabashError, match=small.record.prefix) as refused:
            other.up()
        assert refused.value.reason is Reason.CONFLICT
    assert all(small.daemons().values())


def test_directory_with_something_else_in_it_is_left_alone(small: Lab) -> None:
    small.directory.mkdir()
    (small.directory / "mine").touch()
    with pytest.raises(CalabashError, match="not empty"):
        small.up()
    assert (small.directory / "mine").exists()


def test_two_labs_stand_beside_each_other(small: Lab, lab_prefix: str, tmp_path: Path) -> None:
    with Lab(prefix="w" + lab_prefix[1:], directory=tmp_path / "w", hosts=("h1",), gateways=()) as other:
        small.up()
        small.down()
        assert all(other.daemons().values())


def test_names_that_cannot_be_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    for prefix, hosts in (("UP", ("h1",)), ("a-b", ("h1",)), ("ok", ("ctl",)), ("ok", ("h1", "h1")), ("ok", ())):
        with pytest.raises(CalabashError):
            Lab(prefix=prefix, directory=tmp_path / "l", hosts=hosts, gateways=()).up()
    assert not (tmp_path / "l").exists()


def test_without_packets_ports_come_up_at_two_hosts(lab_prefix: str, tmp_path: Path) -> None:
    needs.need(packets=False)
    with Lab(prefix="x" + lab_prefix[1:], directory=tmp_path / "l", hosts=("h1", "h2"), gateways=(), dummy=True) as lab:
        lab.central.nbctl("ls-add", "s")
        for host in lab.hosts.values():
            lab.central.nbctl("lsp-add", "s", f"s/{host.name}")
            host.vsctl(
                "add-port", "br-int", "v0", "--", "set", "Interface", "v0", f'external_ids:iface-id="s/{host.name}"'
            )
        for name in lab.hosts:
            lab.central.nbctl("wait-until", "Logical_Switch_Port", f"s/{name}", "up=true")
        assert namespaces.named(lab.record.prefix + "-") == []
    assert daemons.kill_all(tmp_path / "l") == 0


def test_without_root_the_command_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(SystemExit) as ended:
        main(["net", "up"])
    assert ended.value.code == 4
    assert "--dummy" in capsys.readouterr().err


def test_of_many_who_bring_one_lab_up_and_down_at_once_none_sees_it_half(small: Lab) -> None:
    line = [sys.executable, "-c", _UP + "lab = Lab.of_prefix(sys.argv[1])\nif lab: lab.down()\n"]
    running = [
        subprocess.Popen([*line, small.record.prefix, str(small.directory)], stderr=subprocess.PIPE) for _ in range(3)
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    assert namespaces.named(small.record.prefix + "-") == []
    assert list(register().glob(f"{small.record.prefix}.*")) == []
