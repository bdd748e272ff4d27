"""Networks realized in a lab by the product's parts: rows by the northbound adapter, appliances by their reconcilers."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.net.ovn_queries import ports_up

from calabash.adapters.links import namespaces
from calabash.adapters.ovn.northbound import Northbound
from calabash.controllers.appliances import processes
from calabash.controllers.appliances import programs as appliance_programs
from calabash.controllers.appliances.host_appliances import ApplianceHost, Appliances
from calabash.controllers.appliances.replica_state import ReplicaState
from calabash.controllers.appliances.switch import HostSwitch
from calabash.controllers.lab import namespaces as lab_namespaces
from calabash.controllers.lab.host import CARDS
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.station import Station
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkObject, Port, Subnet, Vpc
from calabash.net.ovn.northbound.changes import diff
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.platform import platform_rows
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.net.ovn.translation.vpc import vpc_rows
from calabash.net.store.networks import Networks

WITHIN_S = 60.0


def eventually(
    found: Callable[[], object], what: str, within_s: float = WITHIN_S, *, told: Callable[[], str] = lambda: ""
) -> None:
    """Poll until the condition is true, with pauses that leave the processors to the tested programs.

    Args:
        told: return further text for the message of a failure.
    """
    end_s = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {what} {told()}"
        time.sleep(0.02)


class RealizedLab:
    """A lab in which ``networks`` are realized."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.networks = Networks()
        self.resting: tuple[str, ...] = ()
        self.north = Northbound(lab.northbound)
        self.north.session.wait_ready(WITHIN_S)
        assert self.north.session.wait_lock(WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.north.close()

    def put(self, *items: NetworkObject) -> list[NetworkObject]:
        """Add the objects to ``networks`` and return the completed objects."""
        completed = []
        for item in items:
            self.networks, made = self.networks.put(item)
            completed.append(made)
        return completed

    def apply(self) -> None:
        """Write the rows of all networks to the northbound database, and wait until northd has processed them."""
        hosts = NetworkHosts(gateways=tuple(self.lab.record.gateways), resting=self.resting)
        for owner in (PLATFORM, *(vpc.name for vpc in self.networks.all(Vpc))):
            platform = owner == PLATFORM
            rows = (
                platform_rows(self.networks, hosts=hosts) if platform else vpc_rows(self.networks, owner, hosts=hosts)
            )
            if changes := diff(rows, self.north.actual(owner)):
                self.north.apply(changes)
        asked = self.north.beat()
        eventually(lambda: self.north.counts()[1] >= asked, "northd has carried the rows out")

    def station(self, host: str, port: str) -> Station:
        """Create a station on a host for a port of ``networks``, and wait until the port is bound."""
        found = self.networks.find(Port, port)
        subnet = self.networks.find(Subnet, port.rpartition("/")[0])
        assert found is not None
        assert subnet is not None
        lengths = {cidr.version: cidr.prefixlen for cidr in subnet.cidrs}
        addresses = [f"{address}/{lengths[address.version]}" for address in found.addresses]
        made = self.lab.station(host, port, found.mac, addresses, [str(gateway) for gateway in subnet.gateways])
        eventually(lambda: port in ports_up(self.north), f"port {port} is bound")
        return made


class ReconciledHost:
    """The appliances of one host of the lab, reconciled by a thread until it is closed; the appliances then stay."""

    def __init__(
        self, realized: RealizedLab, host: str, secrets: dict[str, bytes], directory: Path | None = None
    ) -> None:
        self._realized = realized
        self._host = host
        self._secrets = secrets
        lab_host = realized.lab.host(host)
        self.namespace = lab_host.namespace
        self.directory = directory or lab_host.directory / "x"
        self._switch = HostSwitch(lab_host.ovs_socket)
        place = ApplianceHost(
            name=host,
            prefix=f"{realized.lab.record.prefix}-{host}x",
            namespace=namespaces.path_of(lab_host.namespace),
            directory=self.directory / "a",
        )
        self.prefix = place.prefix
        self._appliances = Appliances(
            place,
            switch=self._switch,
            tools=appliance_programs.cached(self.directory / "bin"),
            secrets=secrets.get,
        )
        self.states: list[ReplicaState] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._stop.wait(0.05):
            try:
                self.states = self._appliances.reconcile(self._realized.networks, self._realized.lab.record.gateways)
            except CalabashError as error:
                self.states = [ReplicaState(item="", kind="", replica="", failure=str(error))]

    def stop_soon(self) -> None:
        """Let the thread end after its present round, without waiting for it."""
        self._stop.set()

    def stop(self) -> None:
        """End the thread and leave all appliances running, as if its process were killed."""
        self._stop.set()
        self._thread.join()
        self._switch.close()

    def again(self) -> ReconciledHost:
        """Return a new reconciler of the host, which finds what this one left."""
        return ReconciledHost(self._realized, self._host, self._secrets, self.directory)

    def devices(self) -> list[str]:
        """Return the ports of the host's switch that belong to appliances."""
        ports = self._realized.lab.host(self._host).vsctl("list-ports", "br-int").split()
        return [port for port in ports if port.startswith("cx")]

    def logs(self) -> str:
        """Return the last lines of the logs of the host's programs."""
        return " ".join(f"{log.name}: {log.read_text()[-500:]}" for log in self.directory.rglob("*.log"))

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def lose_host(lab: Lab, host: str, kept: ReconciledHost | None = None) -> None:
    """Take a host away at once: first its cables, then all processes that run there."""
    cables(lab, host, "down")
    if kept is not None:
        kept.stop_soon()
    for daemon in ("ovn-controller", "ovs-vswitchd", "ovsdb-server"):
        lab.host(host).kill(daemon)
    if kept is not None:
        kept.stop()
        for name in namespaces.names(kept.prefix):
            processes.end(lab_namespaces.processes(name))
            namespaces.remove(name)


def restart_host(lab: Lab, host: str) -> None:
    """Start a lost host again; its appliances are restored by its reconciler."""
    cables(lab, host, "up")
    lab.host(host).up_switch()
    lab.host(host).start("ovn-controller")


def cables(lab: Lab, host: str, state: str) -> None:
    fabric = f"{lab.record.prefix}-fab"
    lab_namespaces.ip([("link", "set", f"{host}-{card}", state) for card in CARDS], name=fabric)
