"""How far each VPC has been carried out, as conditions of its objects."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind, Port
from calabash.model.network_services import CheckKind, Layer, LoadBalancer
from calabash.model.network_status import ConditionKind
from calabash.net.objects.backends import NONE_CLOSED, backend_name, health
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.view import NetworkHosts
from calabash.netd.known import KnownNetworks
from calabash.netd.realized import SILENT_S, Progress, hosts_of, progress
from calabash.netd.resting import HeldPort, RestingHosts
from calabash.netd.source import Key
from calabash.netd.statuses import Statuses
from calabash.seams.ovn.northbound import Northbound
from calabash.seams.ovn.southbound import Southbound

LATE_S = 5.0  # then it is told whom it waits for
HELD_S = 0.25  # so often it is looked who has the ports of gateways

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Written:
    """A VPC whose rows are as they should be, in the database: counted as ``count``, with these generations."""

    count: int
    generations: dict[Key, int] = field(default_factory=dict)
    since_s: float = 0.0
    late: bool = False


class Judge:
    """Follows what was written until it is realized. Not for several threads.

    Args:
        gateways, rest_s: as for ``Reconciler``.
    """

    def __init__(
        self,
        northbound: Northbound,
        southbound: Southbound,
        statuses: Statuses,
        gateways: tuple[str, ...],
        rest_s: float,
    ) -> None:
        self._northbound, self._southbound, self._statuses = northbound, southbound, statuses
        self._gateways = gateways
        self._resting = RestingHosts(rest_s)
        self._begun = False
        self._held_s = 0.0
        self.hosts = NetworkHosts(gateways=gateways)
        self.pending: dict[str, Written] = {}
        self._seen_hosts: dict[str, str] = {}
        self._seen_dead: frozenset[str] = frozenset()
        self._seen_monitors: tuple[int, dict[tuple[str, int], bool | None]] = (-1, {})
        self.closed = NONE_CLOSED

    def look_at_gateways(self) -> bool:
        """Whether there are other gateway hosts than before, or others rest. One that has gone stays one: others must not take
        what is its."""
        now_s = time.monotonic()
        chassis = self._southbound.chassis()
        found = self._gateways
        if not found:
            told = {one.name for one in chassis if _is_gateway(one.told)}
            rows = self._northbound
            found = tuple(sorted({*told, *self.hosts.gateways, *rows.gateways(), *rows.known_gateways()}))
        if not self._begun:
            self._begin(found, now_s)
        else:
            self._come(set(found) - set(self.hosts.gateways), now_s)
        if now_s - self._held_s >= HELD_S:
            self._held_s = now_s
            alive = {one.name: one.nb_cfg for one in chassis if one.silent_s <= SILENT_S}
            self._resting.look(self._held_ports(), alive, self._northbound.counts()[0], now_s)
        hosts = NetworkHosts(gateways=found, resting=self._resting.hosts)
        if hosts == self.hosts:
            return False
        if hosts.resting != self.hosts.resting:
            log.info("gateway hosts rest", hosts=",".join(hosts.resting), of=",".join(hosts.gateways))
        self.hosts = hosts
        return True

    def look_away(self) -> None:
        """Another controller may do the work meanwhile: what it found stands in the database."""
        self._begun = False

    def _begin(self, gateways: tuple[str, ...], now_s: float) -> None:
        self._begun = True
        self._resting.begin([host for host in self._northbound.resting() if host in gateways], now_s)
        if known := self._northbound.known_gateways():
            self._come(set(gateways) - set(known), now_s)

    def _come(self, new: set[str], now_s: float) -> None:
        """They rest where there is anything yet that they would take over."""
        if new and self._northbound.gateways():
            self._resting.come(new, now_s)

    def _held_ports(self) -> list[HeldPort]:
        orders = self._northbound.gateway_orders()
        return [
            HeldPort(name=name, order=orders[name], host=host, since_s=since_s)
            for name, (host, since_s) in self._southbound.gateway_hosts().items()
            if name in orders
        ]

    def written(self, known: KnownNetworks, owner: str, count: int, *, changed: bool) -> None:
        """The rows are as they should be."""
        if owner == PLATFORM:
            return
        keys = known.keys_of(owner)
        for key in keys:
            self._statuses.set(key, ConditionKind.VALID, True, "accepted")
        late = {k for k in keys if self._statuses.of(k).observed_generation != known.generations.get(k, 0)}
        if not keys:
            self.pending.pop(owner, None)
        elif changed or late:
            generations = {key: known.generations.get(key, 0) for key in keys}
            before = self.pending.get(owner)
            if not changed and before is not None and before.generations == generations:
                return
            self.pending[owner] = Written(count=count, generations=generations, since_s=time.monotonic())

    def failed(self, known: KnownNetworks, owner: str, error: CalabashError) -> None:
        """It cannot be carried out."""
        self.pending.pop(owner, None)
        for key in known.keys_of(owner) if owner != PLATFORM else ():
            self._statuses.set(key, ConditionKind.VALID, False, str(error.reason), error.message)
            self._statuses.set(key, ConditionKind.REALIZED, False, "not_valid")

    def look(self, known: KnownNetworks) -> None:
        """At what hosts have carried out since the last time."""
        if not self._southbound.session.ready:
            return
        chassis = self._southbound.chassis()
        port_hosts = self._southbound.hosts_of_ports()
        count = self._southbound.count()
        for vpc, written in tuple(self.pending.items()):
            hosts = hosts_of(known.networks.of_vpc(vpc), port_hosts, self.hosts.gateways)
            found = progress(written.count, count, hosts, chassis)
            if found.realized:
                del self.pending[vpc]
                self._realized(known, written, found)
            elif not written.late and time.monotonic() - written.since_s > LATE_S:
                written.late = True
                self._late(known, written, found)
        dead = frozenset(one.name for one in chassis if one.silent_s > SILENT_S)
        self._look_at_ports(known, port_hosts, dead)
        self._look_at_backends(known)

    def _look_at_backends(self, known: KnownNetworks) -> None:
        """Of balancers that OVN carries out and checks; of the others those say it who keep their programs."""
        seen = (known.revision, self._southbound.monitors() | dict.fromkeys(self.closed, False))
        if seen == self._seen_monitors:
            return
        self._seen_monitors = seen
        for balancer in known.networks.all(LoadBalancer):
            if balancer.layer is not Layer.L4 or balancer.check.kind is CheckKind.NONE:
                continue
            states = {one: seen[1].get((one.port, one.number)) for one in balancer.backends}
            key = (NetworkKind.LOAD_BALANCER, balancer.name)
            if None in states.values() or not states:
                unknown = sum(state is None for state in states.values())
                text = f"{unknown} of {len(states)} backends have not been seen yet"
                self._statuses.set(key, ConditionKind.READY, None, "backends_unknown", text)
            else:
                well = {backend_name(one): bool(state) for one, state in states.items()}
                self._statuses.set(key, ConditionKind.READY, *health(well))

    def _realized(self, known: KnownNetworks, written: Written, found: Progress) -> None:
        message = f"without {', '.join(found.silent)}, which do not answer" if found.silent else ""
        for key, generation in written.generations.items():
            if key in known.generations:
                self._statuses.set(key, ConditionKind.REALIZED, True, "realized", message, observed=generation)

    def _late(self, known: KnownNetworks, written: Written, found: Progress) -> None:
        for key, generation in written.generations.items():
            if key in known.generations and self._statuses.of(key).observed_generation != generation:
                message = f"waits for {', '.join(found.waits_for)}"
                self._statuses.set(key, ConditionKind.REALIZED, False, "waiting", message)

    def _look_at_ports(self, known: KnownNetworks, port_hosts: dict[str, str], dead: frozenset[str]) -> None:
        names = {name for name, host in port_hosts.items() if self._seen_hosts.get(name) != host}
        names |= self._seen_hosts.keys() - port_hosts.keys()
        turned = dead ^ self._seen_dead
        names |= {name for name, host in port_hosts.items() if host in turned} if turned else set()
        for name in names:
            key = (NetworkKind.PORT, name)
            if known.networks.find(Port, name) is None:
                continue
            host = port_hosts.get(name, "")
            holds = bool(host) and host not in dead
            reason = "bound" if holds else "host_silent" if host else "unbound"
            self._statuses.set(key, ConditionKind.READY, holds, reason, host=host)
        self._seen_hosts, self._seen_dead = port_hosts, dead


def _is_gateway(told: dict[str, str]) -> bool:
    return "enable-chassis-as-gw" in told.get("ovn-cms-options", "").split(",")
