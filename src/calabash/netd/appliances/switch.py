"""This host's Open vSwitch as appliances need it."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.seams.ovn.local import LocalSwitch


class HostSwitch:
    """Ports of the integration bridge."""

    def __init__(self, local: LocalSwitch) -> None:
        self._local = local

    def plug(self, device: str, port: str) -> None:
        self._local.ensure_port(device, port)

    def unplug(self, device: str) -> None:
        self._local.remove_port(device)

    def plugged(self) -> Sequence[str]:
        return [port.name for port in self._local.ports().values() if port.ours]
