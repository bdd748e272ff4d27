"""Tests of the rights of a compromised host's key on the southbound database: OVN's role ``ovn-controller``, over TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from calabash.controllers.lab.central import ADDRESS, SOUTHBOUND_PORT
from calabash.controllers.lab.certificates import AUTHORITY, LabAuthority
from calabash.controllers.lab.lab import Lab

HOSTS, GATEWAYS = ("h1", "h2"), ()


@pytest.fixture(scope="module", autouse=True)
def ports(lab: Lab) -> None:
    lab.central.nbctl("ls-add", "s", "--", "lsp-add", "s", "s/a/one", "--", "lsp-add", "s", "s/a/two")
    for host, port in (("h1", "s/a/one"), ("h2", "s/a/two")):
        lab.station(host, port, f"0a:00:00:00:00:0{host[1]}", [f"10.0.1.1{host[1]}/24"])
        lab.central.nbctl("wait-until", "Logical_Switch_Port", port, "up=true")


def from_host(lab: Lab, *words: str, keys: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``ovn-sbctl`` on h1, with its key or another."""
    place = keys or lab.host("h1").keys
    line = (
        *lab.programs.command("ovn-sbctl"),
        "--timeout=60",
        f"--db=ssl:{ADDRESS}:{SOUTHBOUND_PORT}",
        f"--private-key={place / 'key.pem'}",
        f"--certificate={place / 'certificate.pem'}",
        f"--ca-cert={lab.host('h1').keys / AUTHORITY}",
        *words,
    )
    return lab.run("h1", *line)


def test_host_changes_its_own_chassis(lab: Lab) -> None:
    done = from_host(lab, "set", "Chassis", "h1", "external_ids:tried=yes")
    assert done.returncode == 0, done.stderr
    assert lab.central.sbctl("get", "Chassis", "h1", "external_ids:tried").strip() == "yes"


@pytest.mark.parametrize(
    "change",
    [
        ("set", "Chassis", "h2", "external_ids:tried=yes"),
        ("destroy", "Chassis", "h2"),
        ("set", "Chassis_Private", "h2", "nb_cfg=77"),
        ("destroy", "Chassis_Private", "h2"),
        ("set", "Encap", "H2_ENCAP", "ip=172.31.0.11"),
        ("destroy", "Port_Binding", "s/a/two"),
        ("set", "Port_Binding", "s/a/two", "tunnel_key=99"),
        ("set", "Port_Binding", "s/a/two", 'mac="0a:00:00:00:00:01"'),
        ("--all", "destroy", "Datapath_Binding"),
        ("--all", "destroy", "Logical_Flow"),
        ("--all", "destroy", "RBAC_Role"),
        ("set", "SB_Global", ".", "options:tried=yes"),
        ("set-connection", "ptcp:6642"),
        ("create", "Address_Set", "name=tried"),
    ],
    ids=" ".join,
)
def test_taken_host_cannot_change_what_is_others(lab: Lab, change: tuple[str, ...]) -> None:
    encap = lab.central.sbctl("--bare", "--columns=_uuid", "find", "Encap", "chassis_name=h2").strip()
    before = _database(lab)
    done = from_host(lab, *(encap if word == "H2_ENCAP" else word for word in change))
    assert done.returncode != 0
    assert "permission" in done.stderr
    assert _database(lab) == before


def test_who_has_no_certificate_of_the_lab_is_not_let_in(lab: Lab, tmp_path: Path) -> None:
    other_authority = LabAuthority(tmp_path / "authority")
    other_authority.issue(tmp_path / "h1", "h1")
    done = from_host(lab, "show", keys=tmp_path / "h1")
    assert done.returncode != 0
    assert from_host(lab, "show").returncode == 0


def test_northbound_database_is_on_no_network(lab: Lab) -> None:
    listening = lab.run("ctl", "cat", "/proc/net/tcp", "/proc/net/tcp6").stdout.splitlines()
    ports = {int(line.split()[1].rpartition(":")[2], 16) for line in listening if " 0A " in line}
    assert ports == {SOUTHBOUND_PORT}


def _database(lab: Lab) -> list[str]:
    """Return the rows of the tables above as text, without counters that change by themselves."""
    tables = {
        "Chassis": "name,external_ids,encaps",
        "Chassis_Private": "name",
        "Encap": "chassis_name,ip",
        "Port_Binding": "logical_port,tunnel_key,mac,chassis",
        "Datapath_Binding": "tunnel_key",
        "Logical_Flow": "_uuid",
        "RBAC_Role": "name",
        "SB_Global": "options,connections,ssl",
        "Address_Set": "name",
    }
    return [
        "\n".join(sorted(lab.central.sbctl("--bare", f"--columns={columns}", "list", table).splitlines()))
        for table, columns in tables.items()
    ]
