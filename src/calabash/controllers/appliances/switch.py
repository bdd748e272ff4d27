"""Open vSwitch of this host: ports of appliances on the integration bridge."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.adapters.ovn.open_vswitch import LocalSwitch
from calabash.model.errors import CalabashError, Reason

_CARRIED_OUT = "ovn-installed"  # set by ovn-controller when packets pass at the interface
_WAIT_S = 2.0


class HostSwitch:
    """Ports of the integration bridge; implements ``ApplianceSwitch``.

    The methods raise CalabashError if the switch's database is unreachable; only the first call waits for it.

    Args:
        remote: address of the switch's database.
    """

    def __init__(self, remote: str) -> None:
        self._local = LocalSwitch(remote, timeout_s=_WAIT_S)
        self._was_called = False

    def close(self) -> None:
        self._local.close()

    def plug(self, device: str, port: str) -> bool:
        self._require_connected()
        return self._local.ensure_port(device, port).told.get(_CARRIED_OUT) == "true"

    def unplug(self, device: str) -> None:
        self._require_connected()
        self._local.remove_port(device)

    def plugged(self) -> Sequence[str]:
        self._require_connected()
        return [port.name for port in self._local.ports().values() if port.ours]

    def _require_connected(self) -> None:
        """Raise CalabashError if the database is unreachable. The first call waits for the connection."""
        if self._was_called and not self._local.session.ready:
            raise CalabashError(
                "the switch of this host does not respond", reason=Reason.UNREACHABLE, hint="calabash net doctor"
            )
        self._was_called = True
