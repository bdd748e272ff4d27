"""Hold-down of gateway hosts: hosts that were lost or are new have the lowest priority until they are stable.

Theory of operation. Each gateway port has an *order* of gateway hosts by priority. OVN activates the port on the first
host of the order that responds. So a lost host would take its traffic back as soon as it responds again, and would
interrupt the traffic once more if it fails again. A lost host is therefore moved to the end of all orders. After it was
stable for ``rest_s`` seconds, it regains its position and its traffic. Among the held-down hosts, the one that was held
down last has the lowest priority. New hosts are held down in the same way.

A host activates a port only if the hosts before it in the order do not respond. So if a port is active on a later host,
this is a *claim* that the hosts before it are lost. The claim is accepted under three conditions:

* The port was active there for HOLD_S seconds without interruption.
* The claiming host knows the current order, that is, it has carried out the change that set the order.
* The claiming host was stable for STABLE_S seconds. A host that has just started does not hear the others yet, and
  activates their ports for a moment. A host that was lost counts as stable again after it has carried out a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

REST_S = 300.0
HOLD_S = 1.0
STABLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveGatewayPort:
    """A router port that is active on one of several gateway hosts.

    Args:
        order: the gateway hosts of the port by priority, highest first.
        host: the host on which the port is active.
        since_s: time since which it is active there without interruption.
    """

    name: str
    order: tuple[str, ...]
    host: str
    since_s: float


@dataclass(frozen=True, slots=True)
class _KnownOrder:
    """Order of a gateway port, and the number of the last change that was requested when this order was first seen.

    A host that has carried out this change or a later one therefore knows the order.
    """

    order: tuple[str, ...]
    count: int


class HeldDownHosts:
    """Held-down gateway hosts. Not thread-safe.

    Args:
        rest_s: seconds for which a host has to be stable before it regains its position.
    """

    def __init__(self, rest_s: float = REST_S) -> None:
        self._rest_s = rest_s
        self._since: dict[str, float] = {}  # in order of priority
        self._stable_since: dict[str, float] = {}  # time since when each host is stable
        self._lost_at: dict[str, int] = {}  # change that a lost host had carried out when it was lost
        self._orders: dict[str, _KnownOrder] = {}
        self._claims: dict[
            str, tuple[ActiveGatewayPort, float]
        ] = {}  # by port: the accepted claim, and the time since when it is accepted

    @property
    def hosts(self) -> tuple[str, ...]:
        """Held-down hosts, highest priority first."""
        return tuple(self._since)

    def restore(self, resting: Iterable[str], now_s: float) -> None:
        """Set the held-down hosts, highest priority first, as another controller has written them to the database.

        The hold-down time of a host that is not known here begins at ``now_s``.
        """
        self._since = {host: self._since.get(host, now_s) for host in resting}

    def add_new(self, new: Iterable[str], now_s: float) -> None:
        """Hold down new gateway hosts."""
        for host in sorted(new):
            self._hold_down(host, now_s)

    def update(self, ports: Iterable[ActiveGatewayPort], alive: Mapping[str, int], asked: int, now_s: float) -> None:
        """Hold down lost hosts, and release hosts that have been stable for long enough.

        Args:
            ports: all gateway ports, with the host on which each is active.
            alive: the hosts that respond, each with the number of the last change that it has carried out.
            asked: number of the last requested change. A host that has carried it out knows the orders of all ports.
        """
        self._update_stable(alive, now_s)
        ports = list(ports)
        self._orders = {port.name: self._known_order(port, asked) for port in ports}
        before, self._claims = self._claims, {}
        for port in ports:
            if self._is_accepted_claim(port, alive, now_s):
                claim, since_s = before.get(port.name, (port, now_s))
                since_s = max(port.since_s, since_s) if claim == port else now_s
                self._claims[port.name] = (port, since_s)
                if now_s - since_s >= HOLD_S:
                    self._hold_down_lost(port, alive, now_s)
        for host in self._since.keys() - alive.keys():
            self._since[host] = now_s
        for host in [host for host, since_s in self._since.items() if now_s - since_s >= self._rest_s]:
            del self._since[host]

    def _update_stable(self, alive: Mapping[str, int], now_s: float) -> None:
        self._stable_since = {host: since_s for host, since_s in self._stable_since.items() if host in alive}
        for host, count in alive.items():
            if self._lost_at.get(host) != count:
                self._lost_at.pop(host, None)
                self._stable_since.setdefault(host, now_s)

    def _known_order(self, port: ActiveGatewayPort, asked: int) -> _KnownOrder:
        known = self._orders.get(port.name)
        return known if known is not None and known.order == port.order else _KnownOrder(port.order, asked)

    def _is_accepted_claim(self, port: ActiveGatewayPort, alive: Mapping[str, int], now_s: float) -> bool:
        """Return True if the port is active on a host after the first of its order, and the host can be believed.

        The host must have been stable for STABLE_S seconds, and must know the present order.
        """
        return (
            port.host in port.order[1:]
            and now_s - self._stable_since.get(port.host, now_s) >= STABLE_S
            and alive[port.host] >= self._orders[port.name].count
        )

    def _hold_down_lost(self, port: ActiveGatewayPort, alive: Mapping[str, int], now_s: float) -> None:
        held_down = tuple(self._since)
        for host in port.order[: port.order.index(port.host)]:
            if host not in held_down or (port.host in held_down and held_down.index(host) < held_down.index(port.host)):
                self._hold_down(host, now_s)
                self._stable_since.pop(host, None)
                self._lost_at[host] = alive.get(host, -1)
            else:
                self._since[host] = now_s  # it already has a lower priority; the row follows

    def _hold_down(self, host: str, now_s: float) -> None:
        self._since.pop(host, None)
        self._since[host] = now_s
