"""Detection of OVN daemons that do not respond, and the resulting condition READY of each VPC.

A host is *silent* if it carries out no changes, because its ovn-controller or ovs-vswitchd does not work. A VPC with
ports on a silent host is not ready. If only a gateway host of a VPC is silent, the traffic continues on another gateway
host. The VPC then stays ready, and its condition names the silent host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from calabash.adapters.ovn.northbound import Northbound
from calabash.adapters.ovn.southbound import Southbound
from calabash.controllers.sources.network_store import KnownNetworks
from calabash.controllers.status.progress import SILENT_S, hosts_of
from calabash.controllers.status.status_store import Statuses
from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind, VpcReady

_TEXTS = {
    VpcReady.NORTHBOUND_DOWN: "the northbound database does not respond: no change is carried out",
    VpcReady.SOUTHBOUND_DOWN: "the southbound database does not respond: no change is carried out",
    VpcReady.NORTHD_DOWN: "ovn-northd does not carry out changes",
}
_NAMED = 5
Condition = tuple[bool, str, str]
OwnSwitch = tuple[str, Callable[[], bool]]


class OvnDaemons:
    """Monitors the databases, northd and the hosts, and sets READY of VPCs. Not thread-safe.

    Args:
        own_switch: name of this controller's host, and a function that returns True if the database of the host's
            switch responds. Only this host is checked in this way: an ovn-controller whose switch has failed does not
            report that while nothing changes.
        silent_s: seconds after which a daemon that does not respond is reported; a quick restart is not.
    """

    def __init__(
        self,
        northbound: Northbound,
        southbound: Southbound,
        statuses: Statuses,
        *,
        own_switch: OwnSwitch | None = None,
        silent_s: float = SILENT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._northbound, self._southbound, self._statuses = northbound, southbound, statuses
        self._own_switch, self._silent_s, self._now_s = own_switch, silent_s, now_s
        self._since: dict[str, float] = {}  # time since when each part does not respond
        self._requested: list[tuple[int, float]] = []  # changes that northd has not carried out, with the time of each
        self._dead: frozenset[str] = frozenset()
        self._reported: dict[str, Condition] = {}
        self._last_inputs: object = None

    def update(self, known: KnownNetworks, gateways: Sequence[str], *, leads: bool) -> None:
        """Set READY of every VPC for which it changed.

        Does nothing if another controller leads, unless the northbound database, which elects the controller, is down:
        then every controller sets READY.

        Args:
            known: the networks.
            gateways: names of the gateway hosts.
            leads: True if this controller leads, that is, writes the networks and reports.
        """
        shared = self._shared()
        if not leads and VpcReady.NORTHBOUND_DOWN not in shared:
            return
        if self._southbound.session.ready:
            self._dead = self._silent_hosts(gateways)
        port_hosts = self._southbound.hosts_of_ports() if self._dead else {}
        seen = (shared, self._dead, port_hosts, gateways, known.revision)
        if seen == self._last_inputs:
            return
        self._last_inputs = seen
        vpcs = known.vpcs()
        for vpc in vpcs:
            found = self._condition(known, vpc, shared, (port_hosts, gateways))
            if found != self._reported.get(vpc):
                self._reported[vpc] = found
                self._statuses.set((NetworkKind.VPC, vpc), ConditionKind.READY, *found)
        for vpc in self._reported.keys() - set(vpcs):
            del self._reported[vpc]

    def _condition(
        self, known: KnownNetworks, vpc: str, shared: tuple[VpcReady, ...], hosts: tuple[dict[str, str], Sequence[str]]
    ) -> Condition:
        port_hosts, gateways = hosts
        texts = [_TEXTS[one] for one in shared]
        own = known.networks.of_vpc(vpc)
        bound = hosts_of(own, port_hosts, ()) & self._dead if self._dead else frozenset()
        silent = hosts_of(own, port_hosts, gateways) & self._dead if self._dead else frozenset()
        if silent:
            named = ", ".join(sorted(silent)[:_NAMED]) + (
                f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
            )
            texts.append(f"hosts that do not respond: {named}")
        reason = shared[0] if shared else VpcReady.HOST_SILENT if silent else VpcReady.ACTIVE
        return not shared and not bound, reason.value, "; ".join(texts)

    def _shared(self) -> tuple[VpcReady, ...]:
        """Return the failures that affect every VPC, the most serious first: databases or northd do not respond."""
        found = []
        for reason, session in (
            (VpcReady.NORTHBOUND_DOWN, self._northbound.session),
            (VpcReady.SOUTHBOUND_DOWN, self._southbound.session),
        ):
            if self._lasts(reason.value, failing=not session.ready):
                found.append(reason)
        if not found and self._northd_is_late():
            found.append(VpcReady.NORTHD_DOWN)
        return tuple(found)

    def _northd_is_late(self) -> bool:
        asked, done, now_s = self._northbound.counts()[0], self._southbound.count(), self._now_s()
        if not self._requested or asked != self._requested[-1][0]:
            self._requested.append((asked, now_s))
        # A lower number than before is from a replaced database.
        self._requested = [(count, seen_s) for count, seen_s in self._requested if done < count <= asked]
        return bool(self._requested) and now_s - self._requested[0][1] > self._silent_s

    def _silent_hosts(self, gateways: Sequence[str]) -> frozenset[str]:
        chassis = {one.name: one.silent_s for one in self._southbound.chassis()}
        silent = {name for name, silent_s in chassis.items() if silent_s > self._silent_s}
        silent |= {name for name in gateways if self._lasts(f"host {name}", failing=name not in chassis)}
        if self._own_switch is not None:
            host, answers = self._own_switch
            silent |= {host} if self._lasts(f"switch of {host}", failing=not answers()) else set()
        return frozenset(silent)

    def _lasts(self, what: str, *, failing: bool) -> bool:
        """Record if the daemon or database ``what`` fails now; return True if it failed for more than ``silent_s``."""
        if not failing:
            self._since.pop(what, None)
            return False
        return self._now_s() - self._since.setdefault(what, self._now_s()) > self._silent_s
