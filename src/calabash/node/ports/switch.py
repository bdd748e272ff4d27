"""The Open vSwitch of this host, reduced to the operations on ports of allocations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from calabash.adapters.links.queues import lengthen_at
from calabash.adapters.ovn.open_vswitch import LocalSwitch

OWNER = "calabash:owner"  # key in the external_ids of an interface: its owner
CARRIED_OUT = "ovn-installed"  # key that ovn-controller sets in the external_ids when it has installed the port


class OwnedPorts:
    """Ports of the switch that were added for an allocation or server (their owner); implements ``PortSwitch``.

    Args:
        remote: address of the switch's database.
        namespace: network namespace of the switch; None: that of this process.
    """

    def __init__(self, remote: str, namespace: Path | None = None) -> None:
        self._namespace = namespace
        self._remote = remote
        self._switch = LocalSwitch(remote)

    @property
    def namespace(self) -> Path | None:
        return self._namespace

    def plug(self, interface: str, *, iface_id: str, owner: str) -> None:
        self._switch.ensure_port(interface, iface_id, told={OWNER: owner})

    def unplug(self, interface: str) -> None:
        self._switch.remove_port(interface)

    def plugged(self) -> Mapping[str, tuple[str, str]]:
        ports = self._switch.ports().values()
        return {port.name: (port.iface_id, port.told[OWNER]) for port in ports if OWNER in port.told}

    def up(self, interface: str) -> bool:
        port = self._switch.ports().get(interface)
        if port is None or port.told.get(CARRIED_OUT) != "true":
            return False
        lengthen_at(self._remote)  # a switch in user space reads it through a socket of the kernel's default length
        return True

    def close(self) -> None:
        self._switch.close()
