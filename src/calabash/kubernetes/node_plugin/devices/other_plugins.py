"""Device plug-ins of others that give out the same cards: a card has one giver, so the agent gives nothing while one is there.

The kubelet's checkpoint says cheaply whether there ever was one since the kubelet knows it; whether it is there now, the
kubelet is asked only then, for it does not write down that a plug-in has gone. What the agent itself offers under a name of
NVIDIA's is known by its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

import structlog

from calabash.kubernetes.node_plugin.containers.device_ids import is_card_id
from calabash.model.errors import CalabashError, Reason

# NVIDIA's own names, which device plug-ins of others use as well: whole cards, ``.shared`` ones, parts by MIG.
_SAME_CARDS = re.compile(r"nvidia\.com/(gpu|gpu\.[a-z0-9.-]+|mig-[a-z0-9.-]+)")

Offer = Mapping[str, Collection[str]]
"""Resources, and the devices of each."""

QUIET_S = 5.0  # a plug-in is gone when it has not been seen for so long: one that is restarted comes back sooner

log = structlog.get_logger(__name__)


def gives_cards(resource: str) -> bool:
    """Whether a plug-in of this resource gives out NVIDIA cards."""
    return _SAME_CARDS.fullmatch(resource) is not None


class ForeignPlugins:
    """Watches for them.

    Args:
        registered: resources that the kubelet knows by its checkpoint, with their healthy devices.
        offered: those of plug-ins that are there now.
    """

    def __init__(self, registered: Callable[[], Offer], offered: Callable[[], Offer]) -> None:
        self._registered = registered
        self._offered = offered
        self._found: dict[str, int] = {}
        self._seen_s = 0.0

    def look(self, now_s: float) -> CalabashError | None:
        """Why nothing can be given out; None when nobody else does. While the kubelet does not answer: as it was.

        Args:
            now_s: monotonic time.
        """
        try:
            found = self._there()
        except CalabashError as error:
            log.debug("whether another device plug-in is there is not known now", error=error.message)
            found = self._found
        if found:
            self._found, self._seen_s = found, now_s
        elif now_s - self._seen_s >= QUIET_S:
            self._found = {}
        return foreign_plugin(self._found) if self._found else None

    def offer(self, resource: str) -> bool:
        """Whether one of them offers this very name, as far as is known."""
        return resource in self._found

    def _there(self) -> dict[str, int]:
        return _theirs(self._offered()) if _theirs(self._registered()) else {}


def _theirs(offer: Offer) -> dict[str, int]:
    """How many devices others offer, by resource."""
    counted = {name: sum(not is_card_id(one) for one in offer[name]) for name in sorted(offer) if gives_cards(name)}
    return {name: count for name, count in counted.items() if count}


def foreign_plugin(found: Mapping[str, int]) -> CalabashError:
    """Cards would have two givers."""
    named = ", ".join(f"{count} of {name}" for name, count in found.items())
    return CalabashError(
        f"another device plug-in gives out this node's cards: {named}",
        reason=Reason.FOREIGN_PLUGIN,
        hint="keep it off this node (GPU operator: label the node nvidia.com/gpu.deploy.device-plugin=false);"
        " this agent then serves by itself",
    )
