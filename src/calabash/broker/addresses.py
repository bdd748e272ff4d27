"""Parse and format server addresses of the form ``HOST:PORT``."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from calabash.model.errors import CalabashError

PORT = 7433
_ADDRESS = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%a-z]{2,64})\]|(?P<host>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?"
)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Host name or IP address, and TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def from_socket(listener: socket.socket) -> ServerAddress:
        """Return the address to which a socket is bound."""
        found = listener.getsockname()
        return ServerAddress(str(found[0]), int(found[1]))


def parse_address(text: str) -> ServerAddress:
    """Parse ``lab01:7433``, ``lab01``, ``10.0.0.1:7433`` or ``[::1]:7433``; the port defaults to 7433.

    Raises:
        CalabashError: BAD_REQUEST if the text is not an address.
    """
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"] or PORT) if match else -1
    if match is None or not 0 <= port <= 65535:
        raise CalabashError(f"{text[:120]!r} is no address", hint=f"write HOST:PORT, like lab01:{PORT} or [::1]:{PORT}")
    return ServerAddress(match["six"] or match["host"], port)
