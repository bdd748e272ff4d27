"""Status conditions of network objects: valid, realized and ready, computed from the progress of each VPC."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from calabash.adapters.ovn.northbound import Northbound
from calabash.adapters.ovn.southbound import Southbound
from calabash.controllers.sources.network_source import Key
from calabash.controllers.sources.network_store import KnownNetworks
from calabash.controllers.status.gateway_hold_down import ActiveGatewayPort, HeldDownHosts
from calabash.controllers.status.progress import SILENT_S, Progress, hosts_of, progress
from calabash.controllers.status.status_store import Statuses
from calabash.model.errors import CalabashError
from calabash.model.network import NetworkKind, Port
from calabash.model.network_services import CheckKind, Layer, LoadBalancer
from calabash.model.network_status import ConditionKind
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends, backend_name, backends_condition
from calabash.net.ovn.northbound.rows import PLATFORM
from calabash.net.ovn.translation.view import NetworkHosts

LATE_S = 5.0  # a pending change is reported with the hosts it waits for
GATEWAY_POLL_S = 0.25  # seconds between updates of the hosts that hold gateway ports

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class PendingChange:
    """Written change of a VPC that northd or a host has not carried out yet.

    Args:
        count: number (``nb_cfg``) of the change.
        generations: generation of each object of the VPC that the change contains.
        since_s: monotonic time at which the change was written.
        late: True once a report says that the change takes longer than LATE_S.
    """

    count: int
    generations: dict[Key, int] = field(default_factory=dict)
    since_s: float = 0.0
    late: bool = False


class StatusTracker:
    """Tracks written changes until they are realized, and sets the conditions of objects. Not thread-safe.

    Args:
        statuses: receives the conditions.
        gateways: names of the gateway hosts; if empty, the hosts that announce themselves.
        rest_s: seconds for which a held-down gateway host must be stable before it carries traffic.
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
        self._held_down = HeldDownHosts(rest_s)
        self._active = False
        self._gateways_updated_s = 0.0
        self.hosts = NetworkHosts(gateways=gateways)
        self.pending: dict[str, PendingChange] = {}
        self._last_port_hosts: dict[str, str] = {}
        self._last_dead: frozenset[str] = frozenset()
        self._last_monitors: tuple[int, dict[tuple[str, int], bool | None]] = (-1, {})
        self._closed = NONE_CLOSED

    def set_closed_backends(self, closed: ClosedBackends) -> None:
        """Set the backends at which no program listens."""
        self._closed = closed

    def update_gateways(self) -> bool:
        """Update the gateway hosts; return True if they or the held-down hosts changed.

        A gateway host that disappears stays in the list, so that the networks of other gateway hosts are not moved.
        """
        now_s = time.monotonic()
        chassis = self._southbound.chassis()
        found = self._gateways
        if not found:
            announced = {one.name for one in chassis if _is_gateway(one.told)}
            rows = self._northbound
            found = tuple(sorted({*announced, *self.hosts.gateways, *rows.gateways(), *rows.known_gateways()}))
        if not self._active:
            self._restore(found, now_s)
        else:
            self._hold_down_new(set(found) - set(self.hosts.gateways), now_s)
        if now_s - self._gateways_updated_s >= GATEWAY_POLL_S:
            self._gateways_updated_s = now_s
            alive = {one.name: one.nb_cfg for one in chassis if one.silent_s <= SILENT_S}
            self._held_down.update(self._active_ports(), alive, self._northbound.counts()[0], now_s)
        hosts = NetworkHosts(gateways=found, resting=self._held_down.hosts)
        if hosts == self.hosts:
            return False
        if hosts.resting != self.hosts.resting:
            log.info("gateway hosts are held down", hosts=",".join(hosts.resting), of=",".join(hosts.gateways))
        self.hosts = hosts
        return True

    def suspend(self) -> None:
        """Discard the state of held-down hosts, because another controller leads.

        When this controller leads again, it reads the state that the other one has written to the database.
        """
        self._active = False

    def _restore(self, gateways: tuple[str, ...], now_s: float) -> None:
        self._active = True
        self._held_down.restore([host for host in self._northbound.resting() if host in gateways], now_s)
        if known := self._northbound.known_gateways():
            self._hold_down_new(set(gateways) - set(known), now_s)

    def _hold_down_new(self, new: set[str], now_s: float) -> None:
        """Hold down new gateway hosts if there are gateway ports, which could otherwise move to these hosts."""
        if new and self._northbound.gateways():
            self._held_down.add_new(new, now_s)

    def _active_ports(self) -> list[ActiveGatewayPort]:
        orders = self._northbound.gateway_orders()
        return [
            ActiveGatewayPort(name=name, order=orders[name], host=host, since_s=since_s)
            for name, (host, since_s) in self._southbound.gateway_hosts().items()
            if name in orders
        ]

    def rows_written(self, known: KnownNetworks, owner: str, count: int, *, changed: bool) -> None:
        """Record that the rows of an owner are equal to the desired rows.

        Args:
            count: number (``nb_cfg``) of the change with which they were written.
            changed: False if the rows were equal already.
        """
        if owner == PLATFORM:
            return
        keys = known.keys_of(owner)
        for key in keys:
            self._statuses.set(key, ConditionKind.VALID, True, "accepted")
        late = {k for k in keys if self._statuses.status_of(k).observed_generation != known.generations.get(k, 0)}
        if not keys:
            self.pending.pop(owner, None)
        elif changed or late:
            generations = {key: known.generations.get(key, 0) for key in keys}
            before = self.pending.get(owner)
            if not changed and before is not None and before.generations == generations:
                return
            self.pending[owner] = PendingChange(count=count, generations=generations, since_s=time.monotonic())

    def write_failed(self, known: KnownNetworks, owner: str, error: CalabashError) -> None:
        """Set the conditions VALID and REALIZED of all objects of a VPC to False, because it could not be written."""
        self.pending.pop(owner, None)
        for key in known.keys_of(owner) if owner != PLATFORM else ():
            self._statuses.set(key, ConditionKind.VALID, False, str(error.reason), error.message)
            self._statuses.set(key, ConditionKind.REALIZED, False, "not_valid")

    def update_progress(self, known: KnownNetworks) -> None:
        """Update the conditions of objects according to the changes that northd and the hosts have carried out."""
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
                self._report_pending(known, written, found)
        dead = frozenset(one.name for one in chassis if one.silent_s > SILENT_S)
        self._update_ports(known, port_hosts, dead)
        self._update_backends(known)

    def _update_backends(self, known: KnownNetworks) -> None:
        """Set READY of L4 load balancers whose backends OVN checks. For L7, the appliance controller reports READY."""
        seen = (known.revision, self._southbound.monitors() | dict.fromkeys(self._closed, False))
        if seen == self._last_monitors:
            return
        self._last_monitors = seen
        for balancer in known.networks.all(LoadBalancer):
            if balancer.layer is not Layer.L4 or balancer.check.kind is CheckKind.NONE:
                continue
            states = {one: seen[1].get((one.port, one.number)) for one in balancer.backends}
            key = (NetworkKind.LOAD_BALANCER, balancer.name)
            if None in states.values() or not states:
                unknown = sum(state is None for state in states.values())
                text = f"{unknown} of {len(states)} backends have no health state yet"
                self._statuses.set(key, ConditionKind.READY, None, "backends_unknown", text)
            else:
                healthy = {backend_name(one): bool(state) for one, state in states.items()}
                self._statuses.set(key, ConditionKind.READY, *backends_condition(healthy))

    def _realized(self, known: KnownNetworks, written: PendingChange, found: Progress) -> None:
        message = f"without {', '.join(found.silent)}, which do not respond" if found.silent else ""
        for key, generation in written.generations.items():
            if key in known.generations:
                self._statuses.set(key, ConditionKind.REALIZED, True, "realized", message, observed=generation)

    def _report_pending(self, known: KnownNetworks, written: PendingChange, found: Progress) -> None:
        for key, generation in written.generations.items():
            if key in known.generations and self._statuses.status_of(key).observed_generation != generation:
                message = f"waits for {', '.join(found.waits_for)}"
                self._statuses.set(key, ConditionKind.REALIZED, False, "waiting", message)

    def _update_ports(self, known: KnownNetworks, port_hosts: dict[str, str], dead: frozenset[str]) -> None:
        names = {name for name, host in port_hosts.items() if self._last_port_hosts.get(name) != host}
        names |= self._last_port_hosts.keys() - port_hosts.keys()
        turned = dead ^ self._last_dead
        names |= {name for name, host in port_hosts.items() if host in turned} if turned else set()
        for name in names:
            key = (NetworkKind.PORT, name)
            if known.networks.find(Port, name) is None:
                continue
            host = port_hosts.get(name, "")
            holds = bool(host) and host not in dead
            reason = "bound" if holds else "host_silent" if host else "unbound"
            self._statuses.set(key, ConditionKind.READY, holds, reason, host=host)
        self._last_port_hosts, self._last_dead = port_hosts, dead


def _is_gateway(external_ids: dict[str, str]) -> bool:
    return "enable-chassis-as-gw" in external_ids.get("ovn-cms-options", "").split(",")
