"""This host's Open vSwitch as appliances need it."""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.errors import CalabashError, Reason
from calabash.seams.ovn.local import LocalSwitch

_CARRIED_OUT = "ovn-installed"  # what OVN's controller says of an interface when packets pass there
_WAIT_S = 2.0


class HostSwitch:
    """Ports of the integration bridge. A switch whose database is away is not waited for: other work of the host goes on."""

    def __init__(self, remote: str) -> None:
        self._local = LocalSwitch(remote, timeout_s=_WAIT_S)
        self._asked = False

    def close(self) -> None:
        self._local.close()

    def plug(self, device: str, port: str) -> bool:
        self._require_there()
        return self._local.ensure_port(device, port).told.get(_CARRIED_OUT) == "true"

    def unplug(self, device: str) -> None:
        self._require_there()
        self._local.remove_port(device)

    def plugged(self) -> Sequence[str]:
        self._require_there()
        return [port.name for port in self._local.ports().values() if port.ours]

    def _require_there(self) -> None:
        """The first question alone waits, as a connection takes a moment."""
        if self._asked and not self._local.session.ready:
            raise CalabashError(
                "this host's switch does not answer", reason=Reason.UNREACHABLE, hint="calabash net doctor"
            )
        self._asked = True
