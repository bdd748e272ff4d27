"""Whether a node gives out anything, and how much: what its agent tells the kubelet of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import structlog

from calabash.adapters.kubelet.protocol import CheckpointEntry, PluginDevice
from calabash.kubernetes.node_plugin.devices.device_id_health import (
    HeldTokens,
    Parts,
    any_ill,
    held_tokens,
    token_health,
)
from calabash.kubernetes.node_plugin.devices.other_plugins import ForeignPlugins
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId

log = structlog.get_logger(__name__)


class Giving:
    """Looks twice a second; asked in between by whoever starts a container.

    Args:
        foreign: device plug-ins of others.
        checkpoint: who holds which tokens, by the kubelet.
        record: what the agent has granted.
        unhealthy_partitions: parts of cards that are ill, which the cards need not be.
        full: why nothing could be journalled or metered of what is given; None when it can.
        apart: cards that tokens do not give: those that claims have, or all where the node's door is that of claims.
    """

    def __init__(
        self,
        foreign: ForeignPlugins,
        checkpoint: Callable[[], Iterable[CheckpointEntry]],
        record: Callable[[AllocationId], AllocationRecord | None],
        unhealthy_partitions: Callable[[], Parts] = dict,
        full: Callable[[], CalabashError | None] = lambda: None,
        *,
        apart: Callable[[], Collection[DeviceUuid]] = frozenset,
    ) -> None:
        self._foreign = foreign
        self._checkpoint = checkpoint
        self._record = record
        self._unhealthy_partitions = unhealthy_partitions
        self._full = full
        self._apart = apart
        self._refusal: CalabashError | None = None
        self._told = 0  # devices whose tokens were all told to be well

    def look(self, now_s: float) -> CalabashError | None:
        """Why nothing is given out now; None when it is. ``now_s``: monotonic time."""
        before, self._refusal = self._refusal, self._foreign.look(now_s) or self._full()
        if self._refusal is not None and before is None:
            log.error("nothing is given out", error=self._refusal.message, hint=self._refusal.hint)
        elif self._refusal is None and before is not None:
            log.info("devices are given out again")
        return self._refusal

    def require(self) -> None:
        """Raises the CalabashError for which no container starts now."""
        if self._refusal is not None:
            raise self._refusal

    def tokens(self, devices: Sequence[Device]) -> list[PluginDevice]:
        """All tokens with their health. Tokens in use are as well as their device, whatever else is."""
        gives, parts, apart = self._refusal is None, self._unhealthy_partitions(), self._apart()
        all_alike = gives and not parts and not apart and not any_ill(devices)
        return token_health(devices, () if all_alike else self._held(parts), gives=gives, apart=apart)

    def tell(self, devices: Sequence[Device], tell: Callable[[list[PluginDevice]], None]) -> None:
        """Have all tokens told, unless all is as well as it was."""
        alike = (
            self._refusal is None and not any_ill(devices) and not self._unhealthy_partitions() and not self._apart()
        )
        well = len(devices) if alike else 0
        if not well or well != self._told:
            tell(self.tokens(devices))
        self._told = well

    def _held(self, parts: Parts) -> list[HeldTokens]:
        try:
            return held_tokens(self._checkpoint(), self._record, parts)
        except CalabashError as error:
            log.warning("which tokens are in use is not known", error=error.message)
            return []
