"""Simulated host for ports: a real namespace, and a switch in memory whose ports answer as their gateways."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path

from calabash.adapters.links import interfaces, namespaces
from calabash.adapters.links.interfaces import LinkEnd, LinkSettings
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceUuid, NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId, GpuRequest, ModeName, Placement, Slice
from calabash.node.ports.host_ports import HostNetwork
from calabash.node.ports.protocol import PortFacts


def may() -> bool:
    """Return True if this process may create network namespaces."""
    if os.geteuid() != 0:
        return False
    name = f"cbpw{os.getpid()}"
    try:
        namespaces.create(name)
    except OSError:
        return False
    namespaces.remove(name)
    return True


@dataclass
class MemorySwitch:
    """Switch in memory, whose ports outlive the process that plugged them in, as those of a real switch do."""

    namespace: Path | None
    ports: dict[str, tuple[str, str]] = field(default_factory=dict)
    answering: bool = True
    broken: bool = False

    def plug(self, interface: str, *, iface_id: str, owner: str) -> None:
        self._check()
        self.ports[interface] = (iface_id, owner)
        if self.answering:
            end = LinkEnd(namespace=self.namespace, name=interface)
            interfaces.set_up(end, LinkSettings(addresses=("10.7.0.1/24",)))

    def unplug(self, interface: str) -> None:
        self._check()
        self.ports.pop(interface, None)

    def plugged(self) -> Mapping[str, tuple[str, str]]:
        self._check()
        return dict(self.ports)

    def up(self, interface: str) -> bool:
        self._check()
        return interface in self.ports

    def close(self) -> None:
        """Do nothing."""

    def _check(self) -> None:
        if self.broken:
            raise CalabashError("the switch does not answer", reason=Reason.UNREACHABLE)


class KnownPorts:
    """Source of facts about the ports ``VPC/a/NAME`` in ``names``; addresses are 10.7.0.x by the length of NAME."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def port_facts(self, name: str) -> PortFacts:
        if name not in self.names:
            raise CalabashError(f"there is no port {name}", reason=Reason.NOT_FOUND)
        number = 10 + self.names.index(name)
        return PortFacts(
            name=name,
            mac=f"0a:00:00:00:00:{number:02x}",
            addresses=((ip_address(f"10.7.0.{number}"), ip_network("10.7.0.0/24")),),
            gateways=(ip_address("10.7.0.1"),),
            tenant=name.split("/", maxsplit=1)[0],
            mtu_bytes=1400,
            reaches=(ip_network("10.7.0.0/16"),),
            resolvers=(ip_address("10.7.0.1"),),
            domain="a.red.internal",
        )


def held(name: str, *ports: str, tenant: str = "red") -> AllocationRecord:
    """Return the record of an allocation with these ports."""
    return AllocationRecord(
        id=AllocationId(name),
        state=AllocationState.GRANTED,
        request=GpuRequest(ports=ports, tenant=tenant),
        placement=Placement(
            node=NodeName("n"),
            mode=ModeName("vgpu"),
            slices=(Slice(device=DeviceUuid("GPU-0"), memory_mib=1024, core_percent=10),),
        ),
    )


class PortHost:
    """Host in a separate namespace, on which agents are started and stopped."""

    def __init__(self, home: Path, tag: str) -> None:
        self.home = home
        self.pool = f"cbpw{os.getpid()}{tag}"
        self.name = f"{self.pool}-host"
        namespaces.create(self.name)
        self.switch = MemorySwitch(namespaces.path_of(self.name))
        self.port_source = KnownPorts("red/a/web1", "red/a/web2", "blue/a/web1", "red/a/x-gate")
        self.agent = self.new_agent()

    def new_agent(self) -> HostNetwork:
        return HostNetwork(home=self.home, pool=self.pool, switch=lambda: self.switch, source=self.port_source)

    def left(self) -> list[str]:
        """Return the names of all parts of ports on the host."""
        links = namespaces.inside(namespaces.path_of(self.name), _links)
        files = [p.name for p in (self.home / "net").iterdir()] if (self.home / "net").is_dir() else []
        return [*namespaces.names(f"{self.pool}."), *self.switch.ports, *links, *files]

    def close(self) -> None:
        self.agent.close()
        self.switch.broken = False
        self.new_agent().round([])
        namespaces.remove(self.name)


def _links() -> list[str]:
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return [name for name in (line.split(":")[0].strip() for line in lines) if name.startswith("cb")]
