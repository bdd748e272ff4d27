"""VLANs of the provider network in a lab: a switch with access ports, because the kernel may not support VLAN devices.

The switch is an additional Open vSwitch in the namespace of the links, started when the first VLAN is requested. Its
trunk port is connected to the bridge of the provider network. Each access port adds the tag of its VLAN to packets that
enter, and removes it from packets that leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.links import queues
from calabash.controllers.lab import namespaces
from calabash.controllers.lab.central import create_database, program_output, rundirs
from calabash.controllers.lab.daemons import LabDaemon
from calabash.controllers.lab.programs import OvnPrograms

_BRIDGE, _TRUNK, _OUTER = "br-vlan", "pv0", "pv1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VlanSwitch:
    """Switch for VLANs.

    Args:
        namespace: namespace of the lab's links.
        directory: directory of the switch's files.
        outer: bridge of the provider network in that namespace, to which the trunk is connected.
        programs: locations of OVN's programs.
    """

    namespace: str
    directory: Path
    outer: str
    programs: OvnPrograms

    def up(self) -> None:
        """Create the trunk if it is missing, and start daemons of the switch that are not running."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        create_database(self.programs, self.directory / "conf.db", "vswitch")
        if namespaces.run(self.namespace, "ip", "link", "show", _TRUNK).returncode != 0:
            namespaces.ip(
                [
                    ("link", "add", _TRUNK, "type", "veth", "peer", "name", _OUTER),
                    ("link", "set", _OUTER, "master", self.outer, "up"),
                    ("link", "set", _TRUNK, "up"),
                ],
                name=self.namespace,
            )
            namespaces.without_offloads(self.namespace, (_TRUNK, _OUTER))
        self._daemon(
            "ovsdb-server", f"--remote=punix:{self.directory / 'db.sock'}", str(self.directory / "conf.db")
        ).start()
        bridge = ("--may-exist", "add-br", _BRIDGE, "--", "set", "Bridge", _BRIDGE, "datapath_type=netdev")
        self._vsctl("--no-wait", "--", "init", "--", *bridge, "--", "--may-exist", "add-port", _BRIDGE, _TRUNK)
        self._switch.start()
        queues.lengthen(self._switch.pid)

    def join(self, device: str, vlan: int) -> None:
        """Make a device of this namespace an access port of a VLAN."""
        self._vsctl("--may-exist", "add-port", _BRIDGE, device, f"tag={vlan}")
        queues.lengthen(self._switch.pid)

    @property
    def _switch(self) -> LabDaemon:
        return self._daemon("ovs-vswitchd", "--disable-system", f"unix:{self.directory / 'db.sock'}")

    def _daemon(self, name: str, *arguments: str) -> LabDaemon:
        return LabDaemon(
            name=name,
            directory=self.directory,
            command=self.programs.command(name),
            arguments=arguments,
            namespace=self.namespace,
            environment=rundirs(self.directory),
        )

    def _vsctl(self, *words: str) -> str:
        command = self.programs.command("ovs-vsctl")
        return program_output((*command, "--timeout=30", f"--db=unix:{self.directory / 'db.sock'}", *words))
