"""OVN's southbound database: live hosts, their progress, and the hosts of ports."""

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
_AT_GATEWAYS = "cr-"  # prefix of a router port at its gateway host
_STEPS_MAX = 4096  # number of counts whose age is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Chassis:
    """Host that OVN knows.

    Args:
        name: name of the host in OVN.
        hostname: host name.
        nb_cfg: number of the last change (OVN's ``nb_cfg``) that the host has carried out.
        silent_s: age in seconds of the oldest change that the host has not carried out; 0 if it has carried out all.
        addresses: addresses of its tunnels.
        told: its ``external_ids`` and ``other_config``, with keys such as ``ovn-bridge-mappings``.
    """

    name: str
    hostname: str
    nb_cfg: int
    silent_s: float
    addresses: tuple[str, ...]
    told: dict[str, str]


class Southbound:
    """Read-only client of the southbound database.

    Args:
        changed: called when a host, or the host of a port, has changed; must not block.
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
        """Return all hosts by name, live and dead.

        A dead host can be recognized by a ``silent_s`` that keeps growing.
        """
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
        """Return the host of each bound port."""
        with self.session.reading():
            return dict(self._port_hosts)

    def gateway_hosts(self) -> dict[str, tuple[str, float]]:
        """Return the gateway host of each router port that has one, and since when it has the port (monotonic time)."""
        with self.session.reading():
            return dict(self._held)

    def monitors(self) -> dict[tuple[str, int], bool | None]:
        """Return the results of load balancer health checks, by logical port and TCP or UDP port number.

        True if the check succeeds, False if it fails, None if there is no result yet.
        """
        with self.session.reading() as replica:
            return {
                (str(row["logical_port"]), int(row["port"])): _STATES.get(str(row["status"] or ""))
                for row in replica.tables.get("Service_Monitor", {}).values()
            }

    def count(self) -> int:
        """Return the number of the last change (OVN's ``nb_cfg``) that northd has carried out in this database."""
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
                self._steps.clear()  # another database: counts begin again
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
                    self._remove_port(event.before["logical_port"])
        self._changed()

    def _bind(self, replica: Replica, ports: Iterable[Row]) -> None:
        chassis = replica.tables["Chassis"]
        for port in ports:
            host, name = chassis.get(port["chassis"]), port["logical_port"]
            if host is None:
                self._remove_port(name)
                continue
            self._port_hosts[name] = host["name"]
            if name.startswith(_AT_GATEWAYS):
                short = name.removeprefix(_AT_GATEWAYS)
                if self._held.get(short, ("", 0.0))[0] != host["name"]:
                    self._held[short] = (host["name"], time.monotonic())

    def _remove_port(self, name: str) -> None:
        self._port_hosts.pop(name, None)
        self._held.pop(name.removeprefix(_AT_GATEWAYS), None)
