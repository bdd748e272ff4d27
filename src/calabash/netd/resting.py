"""Which gateway hosts rest: those that were lost, or are new, until they have been well for a set time. Pure.

Theory of operation. OVN gives a gateway's port to the first host of its order that lives, so a host that returns would take
its traffic back at once, and interrupt it again if it goes once more. A host that was lost therefore comes last from then on,
in all rows; when it has been well for ``rest_s``, it gets its place again, and with it its traffic. Of hosts that rest, who
began later stands behind. A host that is new rests likewise, and then takes its share.

A host is lost where another one behind it has the port: a host takes a port only when it sees that those before it do not
answer. What it says so is believed when it has said it for ``HOLD_S`` without a break, of the order as it is now and as it has
carried it out, and when it has been well for ``WELL_S``: one that has just returned has not heard of the others yet, and takes
what is theirs for a moment. One that was itself lost is well again when it has carried something out since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

REST_S = 300.0
HOLD_S = 1.0
WELL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPort:
    """A router's port that is at gateway hosts.

    Args:
        order: its hosts as the rows have them, who comes first first.
        host: the one that has it, since ``since_s`` without a break.
    """

    name: str
    order: tuple[str, ...]
    host: str
    since_s: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """An order, and the count that a host which knows it has carried out."""

    order: tuple[str, ...]
    count: int


class RestingHosts:
    """Follows gateway hosts. Not for several threads.

    Args:
        rest_s: how long a host has to be well before it is given its place again.
    """

    def __init__(self, rest_s: float = REST_S) -> None:
        self._rest_s = rest_s
        self._since: dict[str, float] = {}  # in the order in which they stand
        self._well: dict[str, float] = {}  # since when
        self._lost_at: dict[str, int] = {}  # what a host that was lost had carried out then
        self._orders: dict[str, _Seen] = {}
        self._said: dict[
            str, tuple[HeldPort, float]
        ] = {}  # by ports: who says that others are lost, believed from when on

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that rest, in the order in which they stand behind the others."""
        return tuple(self._since)

    def begin(self, resting: Iterable[str], now_s: float) -> None:
        """Who rests already, in their order; of whom that is known, it is known since when."""
        self._since = {host: self._since.get(host, now_s) for host in resting}

    def come(self, new: Iterable[str], now_s: float) -> None:
        """There are gateway hosts that were not."""
        for host in sorted(new):
            self._rest(host, now_s)

    def look(self, ports: Iterable[HeldPort], alive: Mapping[str, int], asked: int, now_s: float) -> None:
        """Has those rest that are lost, and gives those their place again that have been well for long enough.

        Args:
            alive: hosts that are not silent, and the last count that each has carried out.
            asked: the last count that they were asked for: who has carried it out knows the ports' orders.
        """
        self._see_who_is_well(alive, now_s)
        ports = list(ports)
        self._orders = {port.name: self._seen(port, asked) for port in ports}
        before, self._said = self._said, {}
        for port in ports:
            if self._believed(port, alive, now_s):
                said, since_s = before.get(port.name, (port, now_s))
                since_s = max(port.since_s, since_s) if said == port else now_s
                self._said[port.name] = (port, since_s)
                if now_s - since_s >= HOLD_S:
                    self._lose(port, alive, now_s)
        for host in self._since.keys() - alive.keys():
            self._since[host] = now_s
        for host in [host for host, since_s in self._since.items() if now_s - since_s >= self._rest_s]:
            del self._since[host]

    def _see_who_is_well(self, alive: Mapping[str, int], now_s: float) -> None:
        self._well = {host: since_s for host, since_s in self._well.items() if host in alive}
        for host, count in alive.items():
            if self._lost_at.get(host) != count:
                self._lost_at.pop(host, None)
                self._well.setdefault(host, now_s)

    def _seen(self, port: HeldPort, asked: int) -> _Seen:
        known = self._orders.get(port.name)
        return known if known is not None and known.order == port.order else _Seen(port.order, asked)

    def _believed(self, port: HeldPort, alive: Mapping[str, int], now_s: float) -> bool:
        """Whether the host that has a port says by this, with good reason, that those before it are lost."""
        return (
            port.host in port.order[1:]
            and now_s - self._well.get(port.host, now_s) >= WELL_S
            and alive[port.host] >= self._orders[port.name].count
        )

    def _lose(self, port: HeldPort, alive: Mapping[str, int], now_s: float) -> None:
        stand = tuple(self._since)
        for host in port.order[: port.order.index(port.host)]:
            if host not in stand or (port.host in stand and stand.index(host) < stand.index(port.host)):
                self._rest(host, now_s)
                self._well.pop(host, None)
                self._lost_at[host] = alive.get(host, -1)
            else:
                self._since[host] = now_s  # it stands behind already, and its row follows

    def _rest(self, host: str, now_s: float) -> None:
        self._since.pop(host, None)
        self._since[host] = now_s
