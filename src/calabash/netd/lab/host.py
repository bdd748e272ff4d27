"""One host of a lab: Open vSwitch with the userspace datapath and ovn-controller, in a namespace with three network cards.

``m0`` leads to central, ``u0`` to the other hosts (tunnels), ``x0`` to the provider's network outside. The last two belong to
bridges of Open vSwitch; tunnels leave by the internal port of the bridge that has the host's tunnel address, which is lost
when ovs-vswitchd ends and is set again when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calabash.model.errors import CalabashError, Reason
from calabash.netd.lab import control, namespaces
from calabash.netd.lab.central import ADDRESS, SOUTHBOUND_PORT, create_database, rundirs, told
from calabash.netd.lab.certificates import AUTHORITY
from calabash.netd.lab.daemons import LabDaemon
from calabash.netd.lab.programs import OvnPrograms
from calabash.seams.links import queues

CARDS = ("m0", "u0", "x0")
HOST_DAEMONS = ("ovsdb-server", "ovs-vswitchd", "ovn-controller")
MANAGEMENT, UNDERLAY = "172.30.0", "172.31.0"
PHYSICAL = "ext"  # what uplinks call the provider's network
_CTL_S = 30
_NEIGHBOUR_S = 3600  # the most that Open vSwitch keeps where a tunnel leads that nobody uses


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHost:
    """A host by its name, which is its chassis.

    Args:
        number: 2..254, unique in the lab: the last byte of its addresses.
        namespace: its network namespace; "" in a lab without.
        southbound: what its ovn-controller connects to in a lab without namespaces.
        peers: numbers of the other hosts.
    """

    name: str
    number: int
    namespace: str
    directory: Path
    gateway: bool
    southbound: str
    peers: tuple[int, ...]
    programs: OvnPrograms

    @property
    def ovs_socket(self) -> str:
        """What clients of this host's Open vSwitch database connect to."""
        return f"unix:{self.directory / 'db.sock'}"

    @property
    def tunnel_address(self) -> str:
        return f"{UNDERLAY}.{self.number}"

    @property
    def keys(self) -> Path:
        return self.directory / "keys"

    def up_switch(self) -> None:
        """Starts what of Open vSwitch does not run, as the host needs it."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_database(self.programs, self.directory / "conf.db", "vswitch")
        self.start("ovsdb-server")
        self.vsctl("--no-wait", "--", "init", "--", *self._settings())
        self.start("ovs-vswitchd")

    def daemon(self, name: str) -> LabDaemon:
        """One of HOST_DAEMONS. Raises CalabashError(NOT_FOUND)."""
        if name not in HOST_DAEMONS:
            raise CalabashError(f"a host has no {name}: it has {', '.join(HOST_DAEMONS)}", reason=Reason.NOT_FOUND)
        return LabDaemon(
            name=name,
            directory=self.directory,
            command=self.programs.command(name),
            arguments=self._arguments(name),
            namespace=self.namespace,
            environment=rundirs(self.directory),
        )

    def start(self, name: str) -> None:
        """Starts a daemon that does not run; a started ovs-vswitchd has its tunnel address when this returns."""
        daemon = self.daemon(name)
        if daemon.pid:
            return
        daemon.start()
        if name == "ovs-vswitchd" and self.namespace:
            device = "br-phy"
            namespaces.ip(
                [
                    ("address", "replace", f"{self.tunnel_address}/24", "dev", device),
                    ("link", "set", device, "up"),
                ],
                name=self.namespace,
            )
            self.lengthen_queues()
            self._tell_neighbours()

    def _tell_neighbours(self) -> None:
        """Has the switch know where tunnels lead: it drops a packet whose next hop it must first ask for."""
        self.appctl("ovs-vswitchd", "tnl/neigh/aging", str(_NEIGHBOUR_S))
        for number in self.peers:
            self.appctl("ovs-vswitchd", "tnl/neigh/set", "br-phy", f"{UNDERLAY}.{number}", tunnel_mac(number))

    def stop(self, name: str) -> None:
        """As the host's shutdown does: ovn-controller takes its chassis with it."""
        self.daemon(name).stop()

    def kill(self, name: str) -> None:
        self.daemon(name).kill()

    def vsctl(self, *words: str, timeout_s: float = _CTL_S) -> str:
        """What ``ovs-vsctl`` prints. Without ``--no-wait`` it returns when ovs-vswitchd has done it. Raises CalabashError."""
        command = self.programs.command("ovs-vsctl")
        return told((*command, f"--timeout={int(timeout_s)}", f"--db={self.ovs_socket}", *words))

    def appctl(self, daemon: str, *words: str, timeout_s: float = _CTL_S) -> str:
        """What a daemon answers to a command, ``dpif/show`` to ovs-vswitchd. Raises CalabashError."""
        return control.ask(self.daemon(daemon).control, words[0], words[1:], timeout_s=timeout_s)

    def ofctl(self, *words: str) -> str:
        """What ``ovs-ofctl`` prints, ``dump-flows br-int``; of this host's bridges. Raises CalabashError."""
        known = [f"unix:{self.directory / word}.mgmt" if word.startswith("br-") else word for word in words]
        return told((*self.programs.command("ovs-ofctl"), "-O", "OpenFlow15", *known))

    def lengthen_queues(self) -> int:
        """For ports that were added: bursts of TCP find room in their receive queues; how many it changed."""
        return queues.lengthen(self.daemon("ovs-vswitchd").pid)

    def _arguments(self, name: str) -> tuple[str, ...]:
        if name == "ovsdb-server":
            return (f"--remote=punix:{self.directory / 'db.sock'}", str(self.directory / "conf.db"))
        if name == "ovs-vswitchd":
            dummy = () if self.namespace else ("--enable-dummy=override",)
            return ("--disable-system", *dummy, self.ovs_socket)
        keys = (
            f"--private-key={self.keys / 'key.pem'}",
            f"--certificate={self.keys / 'certificate.pem'}",
            f"--ca-cert={self.keys / AUTHORITY}",
        )
        return (*(keys if self.namespace else ()), self.ovs_socket)

    def _settings(self) -> list[str]:
        remote = f"ssl:{ADDRESS}:{SOUTHBOUND_PORT}" if self.namespace else self.southbound
        datapath = "netdev" if self.namespace else "dummy"
        ids = {
            "system-id": self.name,
            "hostname": self.name,
            "ovn-remote": remote,
            "ovn-ofctrl-wait-before-clear": "300",  # ms: a controller that starts again keeps flows until it has new ones
            "ovn-encap-type": "geneve",
            "ovn-encap-ip": self.tunnel_address,
            "ovn-bridge-datapath-type": datapath,
            "ovn-bridge-mappings": f"{PHYSICAL}:br-ex",
            "ovn-monitor-all": "false",
            "ovn-remote-probe-interval": "60000",
        }
        if self.gateway:
            ids["ovn-cms-options"] = "enable-chassis-as-gw"
        words = ["set", "Open_vSwitch", ".", *(f'external_ids:{key}="{value}"' for key, value in ids.items())]
        for bridge, card, mode in (
            ("br-phy", "u0", "standalone"),
            ("br-ex", "x0", "standalone"),
            ("br-int", "", "secure"),
        ):
            words += ["--", "--may-exist", "add-br", bridge]
            words += ["--", "set", "Bridge", bridge, f"datapath_type={datapath}", f"fail_mode={mode}"]
            if card and self.namespace:
                words += ["--", "--may-exist", "add-port", bridge, card]
        words += ["--", "set", "Bridge", "br-phy", f'other-config:hwaddr="{tunnel_mac(self.number)}"']
        # A bridge that had learned the other gateway host's side of an address would drop what comes for it after a takeover.
        words += ["--", "set", "Bridge", "br-ex", f"flood_vlans={','.join(map(str, range(4096)))}"]
        return [*words, "--", "set", "Bridge", "br-int", "other-config:disable-in-band=true"]


def tunnel_mac(number: int) -> str:
    """The MAC at which a host's tunnels end."""
    return f"02:ca:ba:00:00:{number:02x}"
