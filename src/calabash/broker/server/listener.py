"""Open the listening TCP socket of a server."""

from __future__ import annotations

import contextlib
import socket

from calabash.broker.addresses import ServerAddress
from calabash.model.errors import CalabashError, Reason


def listening(address: ServerAddress) -> socket.socket:
    """Return a socket that listens at the address.

    Raises:
        CalabashError: CONFLICT if the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise CalabashError(
            f"cannot listen on {address}: {(error.strerror or str(error)).lower()}",
            reason=Reason.CONFLICT,
            hint="choose another port, or find the process that uses it: ss -ltnp",
        ) from None
    with contextlib.suppress(OSError):  # detects clients whose machine has failed
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return listener
