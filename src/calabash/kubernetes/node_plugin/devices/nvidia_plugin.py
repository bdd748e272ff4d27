"""The agent's device plug-in for ``nvidia.com/gpu``, whose device IDs stand for whole devices.

Schedulers compute the number of free devices as the number of healthy device IDs minus that of all device IDs in use.
A device ID in use has the health of its device. One unused device ID is healthy for each device that may be given now,
and one more for each unhealthy device ID in use, because schedulers subtract the unhealthy ones in use too.

The kubelet keeps only one device plug-in per resource name. While a plug-in of another system offers this name, the
agent neither updates nor stops its own: when one of the two ends, the kubelet drops both. After the other plug-in has
ended, the agent replaces its server by a new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from calabash.adapters.kubelet import DevicePluginServer, PluginDevice
from calabash.kubernetes.node_plugin.containers.device_ids import card_ids
from calabash.kubernetes.node_plugin.devices.device_id_health import HeldTokens
from calabash.model.device import OUT_OF_SERVICE, DeviceUuid
from calabash.model.errors import CalabashError
from calabash.node.snapshot import DeviceSnapshot

log = structlog.get_logger(__name__)


class WholeDeviceUse(Protocol):
    """The use of whole devices on a node."""

    def held(self) -> Iterable[HeldTokens]:
        """Return the device IDs in use. Raises CalabashError if they cannot be determined."""
        ...

    def spare(self) -> int:
        """Return the number of whole devices that may be given to new containers."""
        ...


class NvidiaNames:
    """The device plug-in for ``nvidia.com/gpu``.

    Args:
        plugin: constructs the server of the plug-in without starting it.
        use: the use of whole devices on the node.
    """

    def __init__(self, plugin: Callable[[], DevicePluginServer], use: WholeDeviceUse) -> None:
        self._make = plugin
        self._use = use
        self._plugin: DevicePluginServer | None = None
        self._disputed = False

    def reconcile(self, states: Sequence[DeviceSnapshot], *, gives: bool, disputed: bool) -> None:
        """Update the plug-in's device IDs; start it if necessary. Called at every iteration of the agent's main loop.

        Args:
            states: the devices of the node.
            gives: True if the node grants new allocations.
            disputed: True if another plug-in offers the same name; this plug-in is then left as it is.
        """
        if disputed:
            self._disputed = self._plugin is not None
            return
        if self._disputed:
            self.stop()
        try:
            tokens = card_tokens(states, self._use.held(), self._use.spare() if gives else 0)
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
    """Return all device IDs of whole devices with their health.

    There is one for each device. For each unhealthy device ID in use, one more unused device ID is healthy, because
    schedulers subtract every device ID in use from the number of healthy ones.

    Args:
        states: the devices of the node.
        held: device IDs in use.
        spare: number of devices that may be given to new containers.
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
