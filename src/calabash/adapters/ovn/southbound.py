"""OVN's southbound database: which hosts live, and how far each has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from calabash.adapters.ovn.replica import Replica, Row, RowEvent
from calabash.adapters.ovn.session import Session
from calabash.adapters.ovn.wire import Credentials

_TABLES = {
    "SB_Global": ("nb_cfg",),
    "Chassis": ("name", "hostname", "encaps", "external_ids", "other_config"),
    "Encap": ("type", "ip", "chassis_name"),
    "Chassis_Private": ("name", "nb_cfg", "nb_cfg_timestamp"),
    "Port_Binding": ("logical_port", "chassis"),
    "Service_Monitor": ("logical_port", "port", "protocol", "status"),
}
_STATES = {"online": True, "offline": False, "error": False}
_AT_GATEWAYS = "cr-"  # what OVN calls a router's port at its gateway host, before the port's name
_STEPS_MAX = 4096  # of counts whose age is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Chassis:
    """A host as OVN knows it.

    Args:
        nb_cfg: the last count that it has carried out.
        silent_s: since when there is a count that it should have carried out and has not; 0 where it has all.
        addresses: of its tunnels.
        told: what it says of itself: ``ovn-bridge-mappings``, versions.
    """

    name: str
    hostname: str
    nb_cfg: int
    silent_s: float
    addresses: tuple[str, ...]
    told: dict[str, str]


class Southbound:
    """The southbound database, only read.

    Args:
        changed: called when a host or a port's host changed; it must not wait.
    """

    def __init__(
        self, remotes: str, *, credentials: Credentials | None = None, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._changed = changed
        self._steps: list[tuple[int, float]] = []  # a count, and when it was seen first; both ascend
        self._port_hosts: dict[str, str] = {}
        self._held: dict[str, tuple[str, float]] = {}  # ports at gateway hosts: the host, since when
        self.session = Session(remotes, "OVN_Southbound", _TABLES, credentials=credentials, told=self._told)

    def close(self) -> None:
        self.session.close()

    def chassis(self) -> tuple[Chassis, ...]:
        """All hosts, living or dead, by name. One is dead when it is silent for longer than any of its work takes."""
        now = time.monotonic()
        with self.session.reading() as replica:
            if not replica.tables:
                return ()
            private = {row["name"]: row for row in replica.tables["Chassis_Private"].values()}
            encaps: dict[str, list[str]] = {}
            for encap in replica.tables["Encap"].values():
                encaps.setdefault(encap["chassis_name"], []).append(encap["ip"])
            found = []
            for row in replica.tables["Chassis"].values():
                count = int(private[row["name"]]["nb_cfg"]) if row["name"] in private else -1
                found.append(
                    Chassis(
                        name=row["name"],
                        hostname=row["hostname"],
                        nb_cfg=count,
                        silent_s=self._silent(count, now),
                        addresses=tuple(sorted(encaps.get(row["name"], ()))),
                        told={**row["external_ids"], **row["other_config"]},
                    )
                )
        return tuple(sorted(found, key=lambda one: one.name))

    def hosts_of_ports(self) -> dict[str, str]:
        """The host on which each bound port is."""
        with self.session.reading():
            return dict(self._port_hosts)

    def gateway_hosts(self) -> dict[str, tuple[str, float]]:
        """Of each router's port that a gateway host has: the host, and since when it has it without a break (monotonic)."""
        with self.session.reading():
            return dict(self._held)

    def monitors(self) -> dict[tuple[str, int], bool | None]:
        """Whether a port answers at a number, as the hosts that check it for load balancers see it; None: not seen yet."""
        with self.session.reading() as replica:
            return {
                (str(row["logical_port"]), int(row["port"])): _STATES.get(str(row["status"] or ""))
                for row in replica.tables.get("Service_Monitor", {}).values()
            }

    def count(self) -> int:
        """What northd has carried to this database of the northbound one's ``nb_cfg``."""
        with self.session.reading():
            return self._steps[-1][0] if self._steps else 0

    def _silent(self, count: int, now: float) -> float:
        for step, seen_s in self._steps:
            if step > count:
                return now - seen_s
        return 0.0

    def _told(self, replica: Replica, events: Sequence[RowEvent]) -> None:
        for row in replica.tables["SB_Global"].values():
            count = int(row["nb_cfg"])
            if self._steps and count < self._steps[-1][0]:
                self._steps.clear()  # the database is another one: counts begin again
            if not self._steps or count > self._steps[-1][0]:
                self._steps.append((count, time.monotonic()))
                del self._steps[:-_STEPS_MAX]
        if not events:
            self._held = {}  # what happened meanwhile is not known
        if not events or any(event.table == "Chassis" for event in events):
            self._port_hosts = {}
            self._bind(replica, replica.tables["Port_Binding"].values())
            self._held = {
                name: held for name, held in self._held.items() if f"{_AT_GATEWAYS}{name}" in self._port_hosts
            }
        else:
            self._bind(replica, (e.after for e in events if e.table == "Port_Binding" and e.after is not None))
            for event in events:
                if event.table == "Port_Binding" and event.after is None and event.before is not None:
                    self._forget(event.before["logical_port"])
        self._changed()

    def _bind(self, replica: Replica, ports: Iterable[Row]) -> None:
        chassis = replica.tables["Chassis"]
        for port in ports:
            host, name = chassis.get(port["chassis"]), port["logical_port"]
            if host is None:
                self._forget(name)
                continue
            self._port_hosts[name] = host["name"]
            if name.startswith(_AT_GATEWAYS):
                short = name.removeprefix(_AT_GATEWAYS)
                if self._held.get(short, ("", 0.0))[0] != host["name"]:
                    self._held[short] = (host["name"], time.monotonic())

    def _forget(self, name: str) -> None:
        self._port_hosts.pop(name, None)
        self._held.pop(name.removeprefix(_AT_GATEWAYS), None)
