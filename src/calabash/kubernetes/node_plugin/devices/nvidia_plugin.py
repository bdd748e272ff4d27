"""``nvidia.com/gpu`` served by the agent itself: a second device plug-in, whose tokens are whole cards.

As many tokens are healthy as containers have cards, or will have, and cards have nobody: schedulers subtract the former, so
what is left for them is the latter. A token in use is as ill as its card; an ill one in use is made up for by one more, for
schedulers subtract its pod as well.

The kubelet keeps one plug-in for each name. While another offers this one, nothing is told and nothing is taken away: a
plug-in that ends has the kubelet drop the other of its name as well. When the other has gone, a new one takes the place.
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
    """The second plug-in.

    Args:
        plugin: makes one, which is not started yet.
        held: who holds tokens of it, by the kubelet; raises CalabashError when that is not known.
        spare: how many cards may be given.
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

    def tend(self, states: Sequence[DeviceSnapshot], *, gives: bool, disputed: bool) -> None:
        """How it is now; to be called again and again.

        Args:
            gives: whether the node gives out anything new.
            disputed: another plug-in offers the same name.
        """
        if disputed:
            self._disputed = self._plugin is not None
            return
        if self._disputed:
            self.stop()
        try:
            tokens = card_tokens(states, self._held(), self._spare() if gives else 0)
        except CalabashError as error:
            log.warning("which whole cards are in use is not known", error=error.message)
            return
        if self._plugin is None:
            self._plugin = self._make()
            self._plugin.set_devices(tokens)
            self._plugin.start()
        else:
            self._plugin.set_devices(tokens)

    def stop(self) -> None:
        """End it; containers go on."""
        plugin, self._plugin, self._disputed = self._plugin, None, False
        if plugin is not None:
            plugin.stop()


def card_tokens(states: Sequence[DeviceSnapshot], held: Iterable[HeldTokens], spare: int) -> list[PluginDevice]:
    """All tokens with their health; as many as cards, unless ill ones have to be made up for.

    Args:
        held: tokens in use.
        spare: how many cards may be given.
    """
    ill = {state.device.uuid for state in states if state.device.health in OUT_OF_SERVICE}
    taken: dict[str, DeviceUuid | None] = {}
    for one in held:
        for token, device in itertools.zip_longest(sorted(one.tokens), one.devices[: len(one.tokens)]):
            taken[token] = device or taken.get(token)  # init containers pass tokens on
    sick = {token for token, device in taken.items() if device in ill}
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
