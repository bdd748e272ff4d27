"""Report to the service manager that started this process, by the protocol of systemd's ``sd_notify``."""

from __future__ import annotations

import os
import socket

NOTIFY_SOCKET = "NOTIFY_SOCKET"
_WAIT_S = 2.0


def report_ready() -> None:
    """Report that the start is complete; do nothing for a process that no service manager waits for.

    The variable that names the manager's socket is removed, so that no child reports in place of this process.
    """
    address = os.environ.pop(NOTIFY_SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(_WAIT_S)
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.send(b"READY=1")
