"""Tests of the network controller over TLS: it sends nothing to a server without a valid certificate."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.world import until
from tests.net.controller import Controller, vpc_with_ports
from tests.net.servers import DatabaseServer

from calabash.adapters.ovn.northbound import Northbound
from calabash.adapters.ovn.southbound import Southbound
from calabash.adapters.ovn.wire import Credentials
from calabash.controllers.lab.certificates import AUTHORITY, LabAuthority
from calabash.model.errors import CalabashError
from calabash.net.store.networks import Networks

WITHIN_S = 60.0


def issued(authority: LabAuthority, directory: Path, name: str) -> Credentials:
    authority.issue(directory, name)
    return Credentials(ca=directory / AUTHORITY, certificate=directory / "certificate.pem", key=directory / "key.pem")


@pytest.fixture
def authority(tmp_path: Path) -> LabAuthority:
    return LabAuthority(tmp_path / "authority")


@pytest.fixture
def central(tmp_path: Path, authority: LabAuthority) -> Iterator[tuple[str, str]]:
    """Start northd and both databases over TLS; the southbound one admits only clients of the hosts' role."""
    issued(authority, tmp_path / "central", "central")
    north = DatabaseServer(tmp_path / "nb", keys=tmp_path / "central")
    south = DatabaseServer(tmp_path / "sb", "OVN_Southbound", keys=tmp_path / "central")
    northd: subprocess.Popen[bytes] | None = None
    try:
        north.start()
        south.start()
        remotes = north.listen(), south.listen(role="ovn-controller")
        line = [
            *north.programs.command("ovn-northd"),
            f"--ovnnb-db={north.remote}",
            f"--ovnsb-db={south.remote}",
            f"--unixctl={tmp_path}/northd.ctl",
            "--no-chdir",
        ]
        with open(tmp_path / "northd.log", "wb") as log:
            northd = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        yield remotes
    finally:
        if northd is not None:
            northd.kill()
            northd.wait()
        north.kill()
        south.kill()


def test_controller_with_its_certificate_carries_networks_out_by_tls(
    central: tuple[str, str], authority: LabAuthority, tmp_path: Path
) -> None:
    networks = vpc_with_ports(Networks(), "red")
    with Controller(*central, credentials=issued(authority, tmp_path / "netd", "netd")) as controller:
        controller.realize(networks)
        assert controller.differences(networks) == []


def test_unknown_clients_are_refused_and_a_host_key_cannot_change_other_rows(
    central: tuple[str, str], authority: LabAuthority, tmp_path: Path
) -> None:
    unknown_client = issued(LabAuthority(tmp_path / "elsewhere"), tmp_path / "stranger", "netd")
    own = issued(authority, tmp_path / "h1", "h1")
    for credentials in (
        unknown_client,
        Credentials(ca=own.ca, certificate=unknown_client.certificate, key=unknown_client.key),
    ):
        refused = Northbound(central[0], credentials=credentials)
        try:
            until(functools.partial(is_refused, refused), what="a reason")
        finally:
            refused.close()
    south = Southbound(central[1], credentials=own)
    try:
        south.session.wait_ready(WITHIN_S)
        with pytest.raises(CalabashError, match="permission"):
            south.session.transact([{"op": "insert", "table": "Address_Set", "row": {"name": "x"}}])
    finally:
        south.close()


def is_refused(north: Northbound) -> bool:
    """Return True if the connection is refused with a reported reason."""
    assert not north.session.ready
    return bool(north.session.failure)
