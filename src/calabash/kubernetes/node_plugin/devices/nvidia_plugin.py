"""Device plug-in for ``nvidia.com/gpu`` of the agent, whose device IDs are whole devices.

As many IDs are healthy as are in use or allocated to containers, plus the devices without an allocation. Schedulers subtract
the former, so that the free devices remain. An ID in use has the health of its device; for each unhealthy one in use one more
free ID is healthy, because schedulers subtract its pod as well.

The kubelet keeps one plug-in per resource name. While another plug-in offers this name, nothing is updated and nothing is
withdrawn, because when a plug-in ends the kubelet also drops the other one of its name. After the other plug-in has gone, a
new server replaces this one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import structlog

from calabash.adapters.kubelet import DevicePluginServer, PluginDevice
from calabash.kubernetes.node_plugin.containers.device_ids import card_ids
from calabash.kubernetes.node_plugin.devices.device_id_health import HeldTokens
from calabash.model.device import OUT_OF_SERVICE, DeviceUuid
from calabash.model.errors import CalabashError
from calabash.node.snapshot import DeviceSnapshot

log = structlog.get_logger(__name__)


class NvidiaNames:
    """The device plug-in for ``nvidia.com/gpu``.

    Args:
        plugin: construct the server without starting it.
        held: return the device IDs in use; raises CalabashError if they are not known.
        spare: return the number of devices that may be given.
    """

    def __init__(
        self,
        plugin: Callable[[], DevicePluginServer],
        held: Callable[[], Iterable[HeldTokens]],
        spare: Callable[[], int],
    ) -> None:
        self._make = plugin
        self._held = held
        self._spare = spare
        self._plugin: DevicePluginServer | None = None
        self._disputed = False

    def reconcile(self, states: Sequence[DeviceSnapshot], *, gives: bool, disputed: bool) -> None:
        """Update the plug-in; called at every iteration of the main loop.

        Args:
            gives: True if the node grants new allocations.
            disputed: True if another plug-in offers the same name.
        """
        if disputed:
            self._disputed = self._plugin is not None
            return
        if self._disputed:
            self.stop()
        try:
            tokens = card_tokens(states, self._held(), self._spare() if gives else 0)
        except CalabashError as error:
            log.warning("cannot determine which whole devices are in use", error=error.message)
            return
        if self._plugin is None:
            self._plugin = self._make()
            self._plugin.set_devices(tokens)
            self._plugin.start()
        else:
            self._plugin.set_devices(tokens)

    def stop(self) -> None:
        """Stop the plug-in. Containers are not affected."""
        plugin, self._plugin, self._disputed = self._plugin, None, False
        if plugin is not None:
            plugin.stop()


def card_tokens(states: Sequence[DeviceSnapshot], held: Iterable[HeldTokens], spare: int) -> list[PluginDevice]:
    """Return all device IDs with their health: one per device, and more to make up for unhealthy ones in use.

    Args:
        held: device IDs in use.
        spare: number of devices that may be given.
    """
    unhealthy = {state.device.uuid for state in states if state.device.health in OUT_OF_SERVICE}
    taken: dict[str, DeviceUuid | None] = {}
    for one in held:
        for token, device in itertools.zip_longest(sorted(one.tokens), one.devices[: len(one.tokens)]):
            taken[token] = device or taken.get(token)  # init containers pass device IDs on
    sick = {token for token, device in taken.items() if device in unhealthy}
    coming = sum(device is None for device in taken.values())
    room = max(0, spare - coming)
    room += len(sick) if room else 0
    answer = [PluginDevice(id=token, healthy=token not in sick) for token in sorted(taken)]
    fresh = (token for token in card_ids() if token not in taken)
    count = max(len(states) - len(taken), room)
    answer += [
        PluginDevice(id=token, healthy=number < room) for number, token in enumerate(itertools.islice(fresh, count))
    ]
    return answer
