"""Detection of closed load balancer backends on this host, many times a second.

OVN checks backends at most once a second and needs two failures. So for almost two seconds after a program has ended,
new connections would still be sent to its port, which refuses them. The kernel of the program's host knows its
listening sockets at once. A backend is closed if a socket was listening at its port number and no longer is; it is open
again when a socket listens. Backends for which no listening socket was ever seen are left to the checks of OVN, because
their programs may accept connections without a socket of the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from calabash.adapters.links.listeners import NamespaceSockets
from calabash.adapters.links.namespaces import path_of
from calabash.adapters.ovn.open_vswitch import LocalSwitch
from calabash.model.addresses import Address
from calabash.model.errors import CalabashError
from calabash.net.objects.backends import NONE_CLOSED, ClosedBackends, format_closed
from calabash.node.ports.interface_names import HostNames
from calabash.node.ports.switch import OWNER

POLL_S = 0.05
UNREACHABLE_S = 2.0  # pause if the switch cannot be reached
BackendKey = tuple[str, int]

log = structlog.get_logger(__name__)


class LocalListeners:
    """Thread that detects when a program on this host stops or starts listening at the port of a load balancer backend.

    Args:
        switch: the switch of this host; the thread's ``close`` also closes this connection.
        changed: called with all backends at which no program listens any more, when this set changes; must not block.
        poll_s: seconds between checks.
    """

    def __init__(
        self, switch: LocalSwitch, changed: Callable[[ClosedBackends], None], *, poll_s: float = POLL_S
    ) -> None:
        self._switch = switch
        self._changed, self._poll_s = changed, poll_s
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
        """Set the backends to check. Those whose ports are on other hosts are ignored.

        Args:
            wanted: address of each backend, by port name and port number.
            closed: closed backends according to the rows in the database. A backend that is new in ``wanted`` and among
                these counts as closed until a socket listens at its port.
        """
        with self._lock:
            new = wanted.keys() - self._wanted.keys()
            self._wanted = wanted
            self._closed = frozenset((self._closed | closed & new) & wanted.keys())

    def _run(self) -> None:
        pause_s = self._poll_s
        while not self._stop.wait(pause_s):
            try:
                with self._lock:
                    before = self._closed
                    if self._wanted:
                        self._closed = self._check(before)
                    after = self._closed
                if after != before:
                    log.info("closed backends", backends=format_closed(after))
                    self._changed(after)
                pause_s = self._poll_s
            except CalabashError as error:  # keep the known state: OVN does not change it without the switch either
                log.debug("backends of this host cannot be checked", why=error.message)
                pause_s = UNREACHABLE_S

    def _check(self, before: ClosedBackends) -> ClosedBackends:
        namespaces_by_port = self._namespaces()
        closed = set()
        for key, address in self._wanted.items():
            namespace = namespaces_by_port.get(key[0])
            sockets = self._sockets.get(namespace) if namespace is not None else None
            if sockets is None:  # the port is not on this host
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

    def _namespaces(self) -> dict[str, str]:
        """Return the network namespace of each watched port on this host.

        Also updates ``_sockets``: opens the socket list of new namespaces and closes those of namespaces not needed.
        """
        wanted = {port for port, _ in self._wanted}
        namespaces_by_port = {
            port.iface_id: HostNames.namespace_of_owner(port.told[OWNER])
            for port in self._switch.ports().values()
            if port.iface_id in wanted and OWNER in port.told
        }
        for name in self._sockets.keys() - set(namespaces_by_port.values()):
            self._sockets.pop(name).close()
        for name in set(namespaces_by_port.values()) - self._sockets.keys():
            try:
                self._sockets[name] = NamespaceSockets(path_of(name))
            except OSError as error:  # the namespace is being removed, or belongs to another machine
                log.debug("namespace cannot be entered", name=name, why=str(error))
        return namespaces_by_port
