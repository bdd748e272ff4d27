"""OVN's southbound database: which hosts live, and how far each has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calabash.seams.ovn.replica import Replica, RowEvent
from calabash.seams.ovn.session import Session
from calabash.seams.ovn.wire import Credentials

_TABLES = {
    "SB_Global": ("nb_cfg",),
    "Chassis": ("name", "hostname", "encaps", "external_ids", "other_config"),
    "Encap": ("type", "ip", "chassis_name"),
    "Chassis_Private": ("name", "nb_cfg", "nb_cfg_timestamp"),
    "Port_Binding": ("logical_port", "chassis", "up", "type"),
}
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
        with self.session.reading() as replica:
            names = {row: columns["name"] for row, columns in replica.tables.get("Chassis", {}).items()}
            return {
                row["logical_port"]: names[row["chassis"]]
                for row in replica.tables.get("Port_Binding", {}).values()
                if row["chassis"] in names
            }

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
        self._changed()
