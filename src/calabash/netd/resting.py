"""Which gateway hosts rest: those that were lost, or are new, until they have been well for a set time. Pure.

Theory of operation. OVN gives a gateway's port to the living host with the highest priority, so a host that returns would take
its traffic back at once, and interrupt it again if it goes once more. A host that loses a port to one behind it, or is silent
and has none, therefore comes last from then on, in all rows; when it has been well for ``rest_s``, it gets its place again,
and with it its traffic. Of hosts that rest, who began later stands behind. A host that is new rests likewise, and then takes
its share.

Nothing is kept: which hosts rest is seen by the rows as they are, as those who rest stand behind the others in all of them. A
controller that starts thus changes no row, and only has everyone rest for the whole time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

REST_S = 300.0


def resting(orders: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Hosts that stand behind all others wherever they are, in their order: who is drawn up as resting changes no order."""
    left = [list(order) for order in orders]
    found: list[str] = []
    while True:
        last = {order[-1] for order in left if len(order) > 1}
        inner = {host for order in left for host in (order[:-1] if len(order) > 1 else order)}
        if not (free := sorted(last - inner)):
            return tuple(found)
        found.insert(0, free[-1])
        left = [[host for host in order if host != free[-1]] for order in left]


class RestingHosts:
    """Follows gateway hosts. Not for several threads.

    Args:
        rest_s: how long a host has to be well before it is given its place again.
    """

    def __init__(self, rest_s: float = REST_S) -> None:
        self._rest_s = rest_s
        self._since: dict[str, float] = {}  # in the order in which they stand

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that rest, in the order in which they stand behind the others."""
        return tuple(self._since)

    def begin(self, gateways: Collection[str], orders: Iterable[Sequence[str]], now_s: float) -> None:
        """What is so at the controller's start: rows as they are."""
        known = [tuple(order) for order in orders]
        for host in resting(known):
            self._since[host] = now_s
        if known:
            self.come(set(gateways) - {host for order in known for host in order}, now_s)

    def come(self, new: Iterable[str], now_s: float) -> None:
        """There are gateway hosts that were not."""
        for host in sorted(new):
            self._rest(host, now_s)

    def moved(self, order: Sequence[str], before: str, now: str, now_s: float) -> None:
        """A port went from a host to another one: the first was lost where it stands before the second."""
        if before in order and now in order and order.index(before) < order.index(now):
            self._rest(before, now_s)

    def look(self, silent: Collection[str], busy: Collection[str], now_s: float) -> None:
        """Gives those their place again that have been well for long enough.

        Args:
            silent: hosts that have not carried out for seconds what they should have; one may be alive and have much to do.
            busy: hosts that have ports of gateways, which none loses by being silent.
        """
        for host in sorted(silent):
            if host in self._since:
                self._since[host] = now_s
            elif host not in busy:
                self._rest(host, now_s)
        for host in [host for host, since_s in self._since.items() if now_s - since_s >= self._rest_s]:
            del self._since[host]

    def _rest(self, host: str, now_s: float) -> None:
        self._since.pop(host, None)
        self._since[host] = now_s
