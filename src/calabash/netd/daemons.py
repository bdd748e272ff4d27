"""Which daemons of OVN do not answer, as a network controller sees it, and what that means for each VPC.

A host is silent when its ovn-controller or its ovs-vswitchd does not work, as it then carries out no change. A VPC with ports
on a silent host is not ready. One that loses a gateway host only goes on by another one, so that it is ready, and its
condition says which host does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind, VpcReady
from calabash.netd.known import KnownNetworks
from calabash.netd.realized import SILENT_S, hosts_of
from calabash.netd.statuses import Statuses
from calabash.seams.ovn.northbound import Northbound
from calabash.seams.ovn.southbound import Southbound

_TEXTS = {
    VpcReady.NORTHBOUND_DOWN: "the northbound database does not answer: no change is carried out",
    VpcReady.SOUTHBOUND_DOWN: "the southbound database does not answer: no change is carried out",
    VpcReady.NORTHD_DOWN: "ovn-northd does not carry out changes",
}
_NAMED = 5
Condition = tuple[bool, str, str]
OwnSwitch = tuple[str, Callable[[], bool]]


class OvnDaemons:
    """Follows the databases, northd and the hosts, and keeps the condition READY of VPCs. Not for several threads.

    Args:
        own_switch: the controller's own host, and whether the database of its switch answers. Of other hosts nobody tells:
            their ovn-controller goes on without it as long as nothing changes.
        silent_s: a daemon is told once it has not answered for so long; one that is started again at once is not.
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
        self._since: dict[str, float] = {}  # of what does not answer: since when
        self._asked: list[
            tuple[int, float]
        ] = []  # counts that northd has not carried out, and when each was seen first
        self._dead: frozenset[str] = frozenset()
        self._told: dict[str, Condition] = {}
        self._seen: object = None

    def look(self, known: KnownNetworks, gateways: Sequence[str], *, leads: bool) -> None:
        """Set the condition READY of every VPC for which it changed.

        Args:
            leads: whether this controller writes. Else another one tells, unless the database that says who leads is down.
        """
        shared = self._shared()
        if not leads and VpcReady.NORTHBOUND_DOWN not in shared:
            return
        if self._southbound.session.ready:
            self._dead = self._silent_hosts(gateways)
        port_hosts = self._southbound.hosts_of_ports() if self._dead else {}
        seen = (shared, self._dead, port_hosts, gateways, known.revision)
        if seen == self._seen:
            return
        self._seen = seen
        vpcs = known.vpcs()
        for vpc in vpcs:
            found = self._condition(known, vpc, shared, (port_hosts, gateways))
            if found != self._told.get(vpc):
                self._told[vpc] = found
                self._statuses.set((NetworkKind.VPC, vpc), ConditionKind.READY, *found)
        for vpc in self._told.keys() - set(vpcs):
            del self._told[vpc]

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
            texts.append(f"hosts that do not answer: {named}")
        reason = shared[0] if shared else VpcReady.HOST_SILENT if silent else VpcReady.ACTIVE
        return not shared and not bound, reason.value, "; ".join(texts)

    def _shared(self) -> tuple[VpcReady, ...]:
        """Return the reasons why every VPC is affected: central parts that do not answer, the worst first."""
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
        if not self._asked or asked != self._asked[-1][0]:
            self._asked.append((asked, now_s))
        # A count that is lower than the one before is of another database.
        self._asked = [(count, seen_s) for count, seen_s in self._asked if done < count <= asked]
        return bool(self._asked) and now_s - self._asked[0][1] > self._silent_s

    def _silent_hosts(self, gateways: Sequence[str]) -> frozenset[str]:
        chassis = {one.name: one.silent_s for one in self._southbound.chassis()}
        silent = {name for name, silent_s in chassis.items() if silent_s > self._silent_s}
        silent |= {name for name in gateways if self._lasts(f"host {name}", failing=name not in chassis)}
        if self._own_switch is not None:
            host, answers = self._own_switch
            silent |= {host} if self._lasts(f"switch of {host}", failing=not answers()) else set()
        return frozenset(silent)

    def _lasts(self, what: str, *, failing: bool) -> bool:
        """Return True if the part has failed for longer than ``silent_s``."""
        if not failing:
            self._since.pop(what, None)
            return False
        return self._now_s() - self._since.setdefault(what, self._now_s()) > self._silent_s
