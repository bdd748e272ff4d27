"""Connect to a host by name within a deadline."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

from calabash.transport.http1_client import left_s

_RESOLVING = threading.BoundedSemaphore(16)  # the library's resolver cannot be told when to give up

AddressInfo = tuple[Any, Any, int, str, Any]
"""Address as ``getaddrinfo`` returns it."""


def resolve(host: str, port: int, deadline: float) -> list[AddressInfo]:
    """Return the addresses of a host in the order of the system's resolver. Raises TimeoutError, OSError.

    The name is resolved in a thread, because ``getaddrinfo`` has no timeout and a name server may not answer.
    """
    if not _RESOLVING.acquire(timeout=left_s(deadline)):
        raise TimeoutError
    found: list[AddressInfo] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            failed.append(error)
        finally:
            _RESOLVING.release()

    thread = threading.Thread(target=ask, name="resolver", daemon=True)
    thread.start()
    thread.join(left_s(deadline))
    if thread.is_alive():
        raise TimeoutError
    if failed:
        raise failed[0]
    return found


def connect_first(addresses: Sequence[AddressInfo], deadline: float) -> socket.socket:
    """Connect to the first address that accepts the connection. Raises TimeoutError, OSError."""
    failed: OSError = OSError("it has no address")
    for family, kind, number, _, address in addresses:
        line = socket.socket(family, kind | socket.SOCK_CLOEXEC, number)
        try:
            line.settimeout(left_s(deadline))
            line.connect(address)
        except OSError as error:
            line.close()
            failed = error
            continue
        return line
    raise failed
