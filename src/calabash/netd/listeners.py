"""Backends of load balancers on this host: whether their programs still listen, looked at many times a second.

OVN checks backends once a second at the most often and needs two failures, so that a program that ended would be offered
connections, which its port refuses, for almost two seconds. The kernel of this host knows at once. A backend is closed when
something listened at its number and nothing does any more, and is open again when something does. A backend at which nothing
was ever seen to listen is left to OVN's checks: its program may take connections without a socket of the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from calabash.agent.net.naming import HostNames
from calabash.agent.net.switch import OWNER
from calabash.model.addresses import Address
from calabash.model.errors import CalabashError
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends, closed_text
from calabash.seams.links.listeners import NamespaceSockets
from calabash.seams.links.namespaces import path_of
from calabash.seams.ovn.local import LocalSwitch

LOOK_S = 0.05
UNREACHABLE_S = 2.0  # between two tries to reach the switch
BackendKey = tuple[str, int]

log = structlog.get_logger(__name__)


class LocalListeners:
    """Looks at the backends whose ports are on this host, in a thread of its own.

    Args:
        switch: this host's, which is closed at the end.
        changed: called with all closed backends when they are others than before; it must not wait.
    """

    def __init__(
        self, switch: LocalSwitch, changed: Callable[[ClosedBackends], None], *, look_s: float = LOOK_S
    ) -> None:
        self._switch = switch
        self._changed, self._look_s = changed, look_s
        self._lock = threading.Lock()
        self._wanted: Mapping[BackendKey, Address] = {}
        self._closed = NONE_CLOSED
        self._open: set[BackendKey] = set()
        self._sockets: dict[str, NamespaceSockets] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listeners", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._switch.close()
        for sockets in self._sockets.values():
            sockets.close()

    def watch(self, wanted: Mapping[BackendKey, Address], closed: ClosedBackends) -> None:
        """Look at these backends from now on. ``closed``: those that were closed when the networks were written last."""
        with self._lock:
            new = wanted.keys() - self._wanted.keys()
            self._wanted = wanted
            self._closed = frozenset((self._closed | closed & new) & wanted.keys())

    def _run(self) -> None:
        pause_s = self._look_s
        while not self._stop.wait(pause_s):
            try:
                with self._lock:
                    before = self._closed
                    if self._wanted:
                        self._closed = self._look(before)
                    after = self._closed
                if after != before:
                    log.info("backends that do not listen", backends=closed_text(after))
                    self._changed(after)
                pause_s = self._look_s
            except CalabashError as error:  # what was known stays: OVN does not change it without the switch either
                log.debug("backends of this host are not looked at", why=error.message)
                pause_s = UNREACHABLE_S

    def _look(self, before: ClosedBackends) -> ClosedBackends:
        places = self._places()
        closed = set()
        for key, address in self._wanted.items():
            place = places.get(key[0])
            sockets = self._sockets.get(place) if place is not None else None
            if sockets is None:  # the port is not on this host, or on none: OVN knows that
                self._open.discard(key)
                continue
            try:
                if sockets.listens(address, key[1]):
                    self._open.add(key)
                elif key in before or key in self._open:
                    self._open.discard(key)
                    closed.add(key)
            except OSError as error:
                raise CalabashError(f"sockets of {key[0]} cannot be read: {error}") from error
        return frozenset(closed)

    def _places(self) -> dict[str, str]:
        """The namespace of each port that the switch has; their sockets are open, and those of no others."""
        wanted = {port for port, _ in self._wanted}
        places = {
            port.iface_id: HostNames.namespace_of_owner(port.told[OWNER])
            for port in self._switch.ports().values()
            if port.iface_id in wanted and OWNER in port.told
        }
        for name in self._sockets.keys() - set(places.values()):
            self._sockets.pop(name).close()
        for name in set(places.values()) - self._sockets.keys():
            try:
                self._sockets[name] = NamespaceSockets(path_of(name))
            except OSError as error:  # it goes this moment, or is of another machine's switch
                log.debug("a namespace cannot be entered", name=name, why=str(error))
        return places
