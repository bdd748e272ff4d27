"""Device IDs that a node offers to the kubelet, and the conditions under which it makes no new grants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import structlog

from calabash.adapters.kubelet.protocol import CheckpointEntry, PluginDevice
from calabash.kubernetes.node_plugin.devices.device_id_health import (
    HeldTokens,
    Parts,
    any_out_of_service,
    held_tokens,
    token_health,
)
from calabash.kubernetes.node_plugin.devices.other_plugins import ForeignPlugins
from calabash.model.allocation import AllocationRecord
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId

log = structlog.get_logger(__name__)


class OfferedNode(Protocol):
    """The node whose device IDs are offered."""

    def entries(self) -> Iterable[CheckpointEntry]:
        """Return the entries of the kubelet's checkpoint, with the device IDs in use."""
        ...

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        """Return the record of an allocation; None if it is not granted."""
        ...

    def unhealthy_partitions(self) -> Parts:
        """Return the unhealthy partitions of devices that are otherwise healthy."""
        ...

    def full(self) -> CalabashError | None:
        """Return the error with which allocations are refused while usage cannot be recorded; None if it can."""
        ...

    def devices_apart(self) -> Collection[DeviceUuid]:
        """Return the devices that are not offered by device IDs.

        These are the devices that are allocated to claims, or all devices if the allocation API is ``claims``.
        """
        ...


class GrantGate:
    """Decision whether the node grants new allocations, and the health of device IDs, which depends on it.

    The decision is made by ``poll``, which the agent calls twice a second, and is read whenever a container starts.

    Args:
        foreign: detects device plug-ins of other systems.
        node: the node whose device IDs are offered.
    """

    def __init__(self, foreign: ForeignPlugins, node: OfferedNode) -> None:
        self._foreign = foreign
        self._node = node
        self._refusal: CalabashError | None = None
        self._reported = 0  # number of devices whose device IDs were all reported healthy

    def poll(self, now_s: float) -> CalabashError | None:
        """Decide whether new allocations are granted; return the error with which they are refused, or None.

        Args:
            now_s: monotonic time in seconds.
        """
        before, self._refusal = self._refusal, self._foreign.poll(now_s) or self._node.full()
        if self._refusal is not None and before is None:
            log.error("new allocations are refused", error=self._refusal.message, hint=self._refusal.hint)
        elif self._refusal is None and before is not None:
            log.info("new allocations are granted again")
        return self._refusal

    def require(self) -> None:
        """Raise the CalabashError with which new allocations are refused; return if they are granted."""
        if self._refusal is not None:
            raise self._refusal

    def tokens(self, devices: Sequence[Device]) -> list[PluginDevice]:
        """Return all device IDs with their health.

        Device IDs in use have the health of their device, also while new allocations are refused.
        """
        gives, parts, apart = self._refusal is None, self._node.unhealthy_partitions(), self._node.devices_apart()
        all_alike = gives and not parts and not apart and not any_out_of_service(devices)
        return token_health(devices, () if all_alike else self._held(parts), gives=gives, apart=apart)

    def report(self, devices: Sequence[Device], report: Callable[[list[PluginDevice]], None]) -> None:
        """Pass all device IDs to ``report``, unless all of them are healthy and the last call reported the same."""
        alike = (
            self._refusal is None
            and not any_out_of_service(devices)
            and not self._node.unhealthy_partitions()
            and not self._node.devices_apart()
        )
        reported = len(devices) if alike else 0
        if not reported or reported != self._reported:
            report(self.tokens(devices))
        self._reported = reported

    def _held(self, parts: Parts) -> list[HeldTokens]:
        try:
            return held_tokens(self._node.entries(), self._node.record, parts)
        except CalabashError as error:
            log.warning("cannot determine which device IDs are in use", error=error.message)
            return []
