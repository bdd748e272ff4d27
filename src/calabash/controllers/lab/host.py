"""Host of a lab: Open vSwitch with the userspace datapath and ovn-controller, in a namespace with three interfaces.

``m0`` is connected to the central part, ``u0`` to the other hosts for tunnels, and ``x0`` to the provider network.
``u0`` and ``x0`` are ports of bridges of Open vSwitch. The tunnel address of the host belongs to the internal port of
the bridge of ``u0``. This port disappears when ovs-vswitchd ends, so the address is set again after each start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.links import queues
from calabash.controllers.lab import daemon_control, namespaces
from calabash.controllers.lab.central import ADDRESS, SOUTHBOUND_PORT, create_database, program_output, rundirs
from calabash.controllers.lab.certificates import AUTHORITY
from calabash.controllers.lab.daemons import LabDaemon
from calabash.controllers.lab.programs import OvnPrograms
from calabash.model.errors import CalabashError, Reason

CARDS = ("m0", "u0", "x0")
HOST_DAEMONS = ("ovsdb-server", "ovs-vswitchd", "ovn-controller")
MANAGEMENT, UNDERLAY = "172.30.0", "172.31.0"
PHYSICAL = "ext"  # name of the provider network in uplinks
_CTL_S = 30
_NEIGHBOUR_S = 3600  # maximum age of unused tunnel neighbours in Open vSwitch


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHost:
    """A host. Its name is the name of its chassis.

    Args:
        number: last byte of the host's addresses, 2 to 254, unique in the lab.
        namespace: network namespace of the host; "" in a lab without namespaces.
        directory: directory of the daemons' files.
        gateway: the host is a gateway host.
        southbound: address of the southbound database; used only in a lab without namespaces.
        peers: numbers of the other hosts, to which there are tunnels.
        programs: locations of OVN's programs.
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
        """Address of this host's Open vSwitch database, in OVN's format ("unix:PATH")."""
        return f"unix:{self.directory / 'db.sock'}"

    @property
    def tunnel_address(self) -> str:
        return f"{UNDERLAY}.{self.number}"

    @property
    def keys(self) -> Path:
        return self.directory / "keys"

    def up_switch(self) -> None:
        """Start the daemons of Open vSwitch that are not running, and configure the switch."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_database(self.programs, self.directory / "conf.db", "vswitch")
        self.start("ovsdb-server")
        self.vsctl("--no-wait", "--", "init", "--", *self._settings())
        self.start("ovs-vswitchd")

    def daemon(self, name: str) -> LabDaemon:
        """Return one of HOST_DAEMONS. Raises CalabashError (NOT_FOUND)."""
        if name not in HOST_DAEMONS:
            raise CalabashError(
                f"hosts have no daemon {name}: they have {', '.join(HOST_DAEMONS)}", reason=Reason.NOT_FOUND
            )
        return LabDaemon(
            name=name,
            directory=self.directory,
            command=self.programs.command(name),
            arguments=self._arguments(name),
            namespace=self.namespace,
            environment=rundirs(self.directory),
        )

    def start(self, name: str) -> None:
        """Start a daemon that is not running. After a start of ovs-vswitchd the tunnel address is set."""
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
            self._set_neighbours()

    def _set_neighbours(self) -> None:
        """Configure the neighbours of tunnels, because the switch drops packets whose next hop it does not know."""
        self.appctl("ovs-vswitchd", "tnl/neigh/aging", str(_NEIGHBOUR_S))
        for number in self.peers:
            self.appctl("ovs-vswitchd", "tnl/neigh/set", "br-phy", f"{UNDERLAY}.{number}", tunnel_mac(number))

    def stop(self, name: str) -> None:
        """Stop a daemon as in a shutdown: ovn-controller removes its chassis."""
        self.daemon(name).stop()

    def kill(self, name: str) -> None:
        self.daemon(name).kill()

    def vsctl(self, *words: str, timeout_s: float = _CTL_S) -> str:
        """Return the output of ``ovs-vsctl``. Waits for ovs-vswitchd unless ``--no-wait`` is given. Raises CalabashError."""
        command = self.programs.command("ovs-vsctl")
        return program_output((*command, f"--timeout={int(timeout_s)}", f"--db={self.ovs_socket}", *words))

    def appctl(self, daemon: str, *words: str, timeout_s: float = _CTL_S) -> str:
        """Return the reply of a daemon to a command, such as ``dpif/show``. Raises CalabashError."""
        return daemon_control.ask(self.daemon(daemon).control, words[0], words[1:], timeout_s=timeout_s)

    def lengthen_queues(self) -> int:
        """Lengthen the receive queues of new ports, so that bursts of TCP are not dropped; return their number."""
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
            "ovn-ofctrl-wait-before-clear": "300",  # ms: a restarted controller keeps flows until it has computed new ones
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
        # No MAC learning: after a failover, a bridge would drop packets for an address learned at the other gateway host.
        words += ["--", "set", "Bridge", "br-ex", f"flood_vlans={','.join(map(str, range(4096)))}"]
        return [*words, "--", "set", "Bridge", "br-int", "other-config:disable-in-band=true"]


def tunnel_mac(number: int) -> str:
    """Return the MAC of the tunnel endpoint of a host."""
    return f"02:ca:ba:00:00:{number:02x}"
