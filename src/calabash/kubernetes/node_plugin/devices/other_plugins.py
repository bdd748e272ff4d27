"""Detection of other systems' device plug-ins that offer the same devices.

While such a plug-in runs, the agent makes no new grants, because both would give the devices to containers.

The kubelet's checkpoint file shows if such a plug-in has ever registered, but not if it has ended. Only if the file
shows one, the agent calls the kubelet to find out if the plug-in still runs. The agent's own device IDs under NVIDIA's
resource name are recognized by their prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

import structlog

from calabash.kubernetes.node_plugin.containers.device_ids import is_card_id
from calabash.model.errors import CalabashError, Reason

# NVIDIA's resource names, which other device plug-ins use as well: whole cards, ``.shared`` ones, MIG partitions.
_SAME_CARDS = re.compile(r"nvidia\.com/(gpu|gpu\.[a-z0-9.-]+|mig-[a-z0-9.-]+)")

Offer = Mapping[str, Collection[str]]
"""Device IDs by resource."""

QUIET_S = 5.0  # a plug-in that was not seen for so long is gone; one that restarts comes back sooner

log = structlog.get_logger(__name__)


def gives_cards(resource: str) -> bool:
    """Return True if a device plug-in for this resource name offers NVIDIA devices."""
    return _SAME_CARDS.fullmatch(resource) is not None


class ForeignPlugins:
    """Detector of other systems' device plug-ins.

    Args:
        registered: returns the resources in the kubelet's checkpoint, with the healthy device IDs of each.
        offered: returns the resources of the device plug-ins that are connected now, with the device IDs of each.
    """

    def __init__(self, registered: Callable[[], Offer], offered: Callable[[], Offer]) -> None:
        self._registered = registered
        self._offered = offered
        self._found: dict[str, int] = {}
        self._seen_s = 0.0

    def poll(self, now_s: float) -> CalabashError | None:
        """Return the error with which new allocations are refused; None if no other plug-in offers the devices.

        While the kubelet does not answer, the result of the last call holds. A plug-in counts as ended ``QUIET_S``
        seconds after it was last seen.

        Args:
            now_s: monotonic time in seconds.
        """
        try:
            found = self._find_others()
        except CalabashError as error:
            log.debug("cannot ask the kubelet for other device plug-ins", error=error.message)
            found = self._found
        if found:
            self._found, self._seen_s = found, now_s
        elif now_s - self._seen_s >= QUIET_S:
            self._found = {}
        return foreign_plugin(self._found) if self._found else None

    def offer(self, resource: str) -> bool:
        """Return True if another plug-in offered this resource at the time of the last ``poll``."""
        return resource in self._found

    def _find_others(self) -> dict[str, int]:
        return _offered_by_others(self._offered()) if _offered_by_others(self._registered()) else {}


def _offered_by_others(offer: Offer) -> dict[str, int]:
    """Return the number of devices that other plug-ins offer, by resource."""
    counted = {name: sum(not is_card_id(one) for one in offer[name]) for name in sorted(offer) if gives_cards(name)}
    return {name: count for name, count in counted.items() if count}


def foreign_plugin(found: Mapping[str, int]) -> CalabashError:
    """Return the error that names the other device plug-ins and their devices."""
    named = ", ".join(f"{count} of {name}" for name, count in found.items())
    return CalabashError(
        f"another device plug-in offers this node's devices: {named}",
        reason=Reason.FOREIGN_PLUGIN,
        hint="remove it from this node (GPU operator: label the node nvidia.com/gpu.deploy.device-plugin=false);"
        " the agent then serves without a restart",
    )
