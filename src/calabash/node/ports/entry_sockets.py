"""Opens the way of a program into its allocation's namespace: a socket at which a keeper waits for it.

Only root may enter a namespace, and a program's user is not root; so the program is started by a process of the pool's
(``keeper``), which is no child of whoever asked. That one gives it its input and output, and hears how it ended.
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
from calabash.node.ports.interface_names import DOOR_FILE
from calabash.node.ports.protocol import Place

_PATH_BYTES_MAX = 107


class DoorOrder(msgspec.Struct, kw_only=True, frozen=True):
    """What a keeper is told.

    Args:
        listener: the descriptor of the socket that it waits at.
        uid: who may come.
        lease: the file that the program holds a lock on; "" where the kernel knows its members.
        member: whether the program is a member of the allocation; not where a worker uses the slice in its stead.
    """

    home: str
    allocation: str
    listener: int
    uid: int
    namespace: str
    resolver_file: str = ""
    lease: str = ""
    member: bool = True


class Doors:
    """The keepers of one pool. Safe for threads."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._keepers: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def open(self, record: AllocationRecord, place: Place, *, lease: str, member: bool) -> str:
        """The path of the socket; its keeper goes when nobody comes within seconds. Raises CalabashError."""
        path = place.directory / DOOR_FILE
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise CalabashError(
                f"the path of a door has {len(os.fsencode(path))} bytes, the kernel takes {_PATH_BYTES_MAX}: {path}",
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
                    DoorOrder(
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
                f"the way to the ports of {record.id} cannot be opened: {error.strerror or error}",
                reason=Reason.CONFLICT,
                hint="try again",
            ) from error
        return str(path)

    def _start(self, order: DoorOrder) -> None:
        keeper = start_module(
            "calabash.node.ports.entry_keeper", stdin=subprocess.PIPE, pass_fds=(order.listener,), new_session=True
        )
        assert keeper.stdin is not None
        with keeper.stdin:
            keeper.stdin.write(msgspec.json.encode(order))
        with self._lock:
            self._keepers = [other for other in self._keepers if other.poll() is None] + [keeper]
