"""Placement of probes: create a port ``VPC/SUBNET/x-check-N`` in the pool and a namespace for it on this machine.

At the end the ports and namespaces are removed. Those of earlier checks that were killed are removed at the beginning.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from calabash.adapters.links import namespaces
from calabash.adapters.pool.client import ApiClient
from calabash.api import endpoints
from calabash.controllers.checks.probes import Probe
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.record import registered
from calabash.controllers.sources.network_source import PoolNetworks
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import Subnet, vpc_of
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement
from calabash.net.store.networks import Networks
from calabash.node.ports.host_ports import HostNetwork
from calabash.node.ports.network_file import HostPlace, read_host_place
from calabash.node.ports.port_facts import PlatformPorts
from calabash.node.ports.protocol import READY_WITHIN_S
from calabash.node.ports.switch import OwnedPorts

LABEL = "x-check"
POOL = "calabash-check"
PER_SUBNET = 2
POLL_S = 0.02


def hosts_of(home: Path) -> tuple[HostPlace, ...]:
    """Return the hosts whose switches are on this machine: the host of this pool, and other hosts of its lab.

    Raises:
        CalabashError: UNSUPPORTED if this machine is not a host of tenant networks.
    """
    own = read_host_place(home)
    if own is None:
        raise CalabashError(
            "this machine is not a host of tenant networks", reason=Reason.UNSUPPORTED, hint="calabash net up"
        )
    found = [own]
    for prefix in registered():
        lab = Lab.of_prefix(prefix)
        known = {} if lab is None or lab.record.dummy else lab.hosts
        if any(host.ovs_socket == own.switch for host in known.values()):
            found += [
                HostPlace(name=host.name, switch=host.ovs_socket, namespace=str(namespaces.path_of(host.namespace)))
                for host in known.values()
                if host.ovs_socket != own.switch and not host.gateway
            ]
    return tuple(found)


def pool_networks(pool: ApiClient) -> Networks:
    """Return the current networks of the pool. Raises CalabashError."""
    update = PoolNetworks(pool).fetch_update(-1, 0.0)
    return Networks.from_objects([item for item, _ in update.items], update.revision)


class ProbePlaces:
    """Creates and removes the probes of one check of a VPC.

    Args:
        pool: client with the rights of an administrator.
        hosts: hosts on this machine over which the probes are distributed.
    """

    def __init__(self, pool: ApiClient, hosts: Sequence[HostPlace]) -> None:
        self._pool = pool
        self._hosts = hosts
        self._present = Networks()  # as last read
        self._booked = PlatformPorts(lambda: self._present)
        self._directory = tempfile.TemporaryDirectory(prefix="calabash-check-")
        self._name = f"{POOL}-{os.getpid()}"
        self._networks: list[HostNetwork] = []
        self._made: list[tuple[str, str]] = []
        self._attached: list[tuple[HostNetwork, AllocationRecord]] = []

    @contextmanager
    def open(self) -> Iterator[ProbePlaces]:
        """Prepare the hosts, and remove all probes at the end of the context."""
        try:
            for number, host in enumerate(self._hosts):
                home = Path(self._directory.name) / str(number)
                home.mkdir()
                self._sweep_dead(host)
                self._networks.append(self._network(home, f"{self._name}-{number}", host))
            yield self
        finally:
            self._close()

    def put_ports(self, subnets: Sequence[Subnet]) -> Mapping[str, list[str]]:
        """Create PER_SUBNET ports in each subnet; return their names by subnet. Raises CalabashError."""
        found: dict[str, list[str]] = {}
        for subnet in subnets:
            for number in range(1, PER_SUBNET + 1):
                found.setdefault(subnet.name, []).append(self._put(f"{subnet.name}/{LABEL}-{number}", {}))
        self._read()
        return found

    def put_port(self, subnet: str, number: int, *, qos: str) -> str:
        """Create a port with a QoS policy; return its name. Raises CalabashError."""
        name = self._put(f"{subnet}/{LABEL}-{number}", {"qos": qos})
        self._read()
        return name

    def place_far(self, subnet: Subnet, sender: Probe) -> Probe:
        """Place a probe in a subnet of another VPC, in a security group that admits ``sender``. Raises CalabashError."""
        group = f"{vpc_of(subnet.name)}/{LABEL}"
        rule = {"direction": "ingress", "protocol": "any", "peer": f"{sender.address}/{sender.address.max_prefixlen}"}
        self._put(group, {"rules": [rule]}, kind="sg")
        port = self._put(f"{subnet.name}/{LABEL}-1", {"security_groups": [group]})
        self._read()
        return self.place(port, len(self._attached))

    def _put(self, name: str, spec: dict[str, Any], *, kind: str = "port") -> str:
        self._pool.send(endpoints.PUT_NETWORK_OBJECT, body={"kind": kind, "name": name, "spec": spec})
        self._made.append((kind, name))
        return name

    def _read(self) -> None:
        self._present = pool_networks(self._pool)

    def place(self, port: str, number: int) -> Probe:
        """Attach a port to a new namespace and wait until packets pass; return the probe.

        Args:
            port: name of a port that ``put_ports`` or ``put_port`` created.
            number: selects the host, modulo the number of hosts.

        Raises:
            CalabashError: UNREACHABLE if the port does not work within READY_WITHIN_S seconds.
        """
        at = number % len(self._networks)
        network = self._networks[at]
        record = AllocationRecord(
            id=AllocationId(f"probe-{len(self._attached)}"),
            state=AllocationState.GRANTED,
            request=GpuRequest(ports=(port,)),
            placement=Placement(node=NodeName(""), mode=ModeName(""), slices=()),
        )
        self._attached.append((network, record))
        network.attach(record)
        deadline_s = time.monotonic() + READY_WITHIN_S
        while what := network.lacks(record):
            if time.monotonic() > deadline_s:
                raise CalabashError(f"{what}, after {READY_WITHIN_S:g} s", reason=Reason.UNREACHABLE)
            time.sleep(POLL_S)
        place = network.place(record)
        assert place is not None
        host = self._hosts[at].name or "this host"
        return Probe(facts=self._booked.port_facts(port), host=host, namespace=place.namespace)

    def _network(self, home: Path, name: str, host: HostPlace) -> HostNetwork:
        inside = Path(host.namespace) if host.namespace else None
        return HostNetwork(home=home, pool=name, switch=lambda: OwnedPorts(host.switch, inside), source=self._booked)

    def _sweep_dead(self, host: HostPlace) -> None:
        """Remove probes of killed checks from this host."""
        inside = Path(host.namespace) if host.namespace else None
        switch = OwnedPorts(host.switch, inside)
        try:
            owners = {owner.partition("/")[0] for _, owner in switch.plugged().values()}
        finally:
            switch.close()
        owners |= {name.partition(".")[0] for name in namespaces.names(f"{POOL}-")}
        for name in owners:
            pid = re.fullmatch(rf"{POOL}-(\d+)-\d+", name)
            if pid and not Path(f"/proc/{pid[1]}").exists():
                dead = self._network(Path(self._directory.name) / "dead", name, host)
                dead.round(())
                dead.close()

    def _close(self) -> None:
        for network, record in self._attached:
            network.leave(record)
        for network in self._networks:
            network.round(())
            network.close()
        for kind, name in reversed(self._made):
            with suppress(CalabashError):
                self._pool.send(endpoints.DELETE_NETWORK_OBJECT, kind, query={"name": name})
        self._directory.cleanup()
