"""Entry sockets, at which a keeper process waits for the caller of a program in the network namespace of an allocation.

Only root may enter a namespace, and the user of the program is not root. So a process of the pool, ``entry_keeper``, starts
the program. It is no child of the caller, who sends it the program's input and output and receives its exit status.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import msgspec

from calabash.adapters.host.children import start_module
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.node.ports.interface_names import ENTRY_SOCKET_FILE
from calabash.node.ports.protocol import Place

_PATH_BYTES_MAX = 107


class KeeperOrder(msgspec.Struct, kw_only=True, frozen=True):
    """Parameters of a keeper process, which it reads from standard input.

    Args:
        home: the pool's directory.
        listener: descriptor of the entry socket.
        uid: the user whose connection is accepted.
        namespace: path of the network namespace.
        resolver_file: the file that the program sees as /etc/resolv.conf; "": the host's.
        lease: the file that the program holds a lock on; "" where members are known by their cgroup.
        member: True if the program becomes a member of the allocation, False if a worker uses the slice for it.
    """

    home: str
    allocation: str
    listener: int
    uid: int
    namespace: str
    resolver_file: str = ""
    lease: str = ""
    member: bool = True


class EntrySockets:
    """The entry sockets and keepers of one pool. Methods may be called from any thread."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def open(self, record: AllocationRecord, place: Place, *, lease: str, member: bool) -> str:
        """Create an entry socket and start its keeper, which exits if no caller connects within seconds.

        Args:
            record: the allocation; its user may connect.
            place: the namespace of the allocation, and the directory for the socket.
            lease: the lease file; "" where members are known by their cgroup.
            member: True if the program becomes a member of the allocation.

        Returns:
            The path of the socket.

        Raises:
            CalabashError: the path is too long; CONFLICT: the socket or the keeper cannot be created.
        """
        path = place.directory / ENTRY_SOCKET_FILE
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise CalabashError(
                f"the path of an entry socket has {len(os.fsencode(path))} bytes, at most {_PATH_BYTES_MAX} are allowed:"
                f" {path}",
                hint="set CALABASH_HOME to a shorter path",
            )
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
                path.unlink(missing_ok=True)
                listener.bind(str(path))
                os.chown(path, max(record.uid, 0), -1)
                path.chmod(0o600)
                listener.listen(1)
                self._start(
                    KeeperOrder(
                        home=str(self._home),
                        allocation=record.id,
                        listener=listener.fileno(),
                        uid=max(record.uid, 0),
                        namespace=str(place.namespace),
                        resolver_file=str(place.resolver_file or ""),
                        lease=lease,
                        member=member,
                    )
                )
        except OSError as error:
            raise CalabashError(
                f"the entry socket of allocation {record.id} cannot be created: {error.strerror or error}",
                reason=Reason.CONFLICT,
                hint="try again",
            ) from error
        return str(path)

    def _start(self, order: KeeperOrder) -> None:
        keeper = start_module(
            "calabash.node.ports.entry_keeper", stdin=subprocess.PIPE, pass_fds=(order.listener,), new_session=True
        )
        assert keeper.stdin is not None
        with keeper.stdin:
            keeper.stdin.write(msgspec.json.encode(order))
        with self._lock:
            self._keepers = [other for other in self._keepers if other.poll() is None] + [keeper]
