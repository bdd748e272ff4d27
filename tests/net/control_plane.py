"""OVN's control plane alone: both databases, northd, and ``ovn-trace`` as a daemon. Needs no root, moves no packet."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.daemons.world import until
from tests.net.servers import ovn_programs

from calabash.adapters.ovn.northbound import Northbound
from calabash.controllers.lab.central import LabCentral
from calabash.controllers.lab.daemon_control import ask
from calabash.controllers.lab.daemons import LabDaemon, kill_all
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

WITHIN_S = 120.0
HOSTS = NetworkHosts(gateways=("g1", "g2"))
_OUTPUT = re.compile(r'output\("([^"]*)"\)')
_BATCH = 20  # VPCs in a transaction


class ControlPlane:
    """OVN databases in ``directory`` for the objects of ``networks``; ``close`` ends all processes."""

    def __init__(self, directory: Path) -> None:
        self.programs = ovn_programs()
        self.central = LabCentral(directory=directory, namespace="", programs=self.programs)
        self._tracer = LabDaemon(
            name="trace",
            directory=directory,
            command=self.programs.command("ovn-trace"),
            arguments=(f"--db={self.central.southbound}",),
        )
        self.central.up()
        self.northbound = Northbound(self.central.northbound)
        self.northbound.session.wait_ready(WITHIN_S)
        assert self.northbound.session.wait_lock(WITHIN_S)

    def close(self) -> None:
        self.northbound.close()
        kill_all(self.central.directory)

    def put(self, networks: Networks) -> None:
        """Write the differences, as the controller does, and wait until northd has processed them."""
        put(self.northbound, networks)
        asked_for, _ = self.northbound.counts()
        until(lambda: self.northbound.counts()[1] >= asked_for, within_s=WITHIN_S)

    def trace(self) -> None:
        """Have ``ovn-trace`` read the database, once; ``outputs`` answers for the content of that time."""
        self._tracer.kill()
        self._tracer.start()

    def trace_text(self, switch: str, flow: str, *words: str) -> str:
        """Return the text of ``ovn-trace`` for a packet that enters ``switch`` as ``flow`` describes."""
        return ask(self._tracer.control, "trace", [*words, switch, flow], timeout_s=WITHIN_S)

    def outputs(self, switch: str, flow: str) -> list[str]:
        """Return the ports at which the packet leaves."""
        return _OUTPUT.findall(self.trace_text(switch, flow, "--minimal"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def put(northbound: Northbound, networks: Networks, hosts: NetworkHosts = HOSTS) -> None:
    """Make the database equal to the networks, including the removal of deleted VPCs."""
    wanted = {vpc: vpc_rows(networks, vpc, hosts=hosts) for vpc in networks.vpcs if vpc}
    wanted[PLATFORM] = platform_rows(networks)
    for owner in northbound.owners() - wanted.keys():
        wanted[owner] = {}
    owners = list(wanted)
    for first in range(0, len(owners), _BATCH):
        changes = [
            change
            for owner in owners[first : first + _BATCH]
            for change in diff(wanted[owner], northbound.actual(owner))
        ]
        northbound.apply(changes)
