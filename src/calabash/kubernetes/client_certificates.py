"""Authentication of a server's clients by their TLS certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrustedClients:
    """The clients that a server accepts: those whose certificate was signed by a given authority.

    Args:
        authority: certificates of the accepted authorities, as PEM.
        names: accepted common names of client certificates; empty to accept all names.
    """

    authority: str
    names: tuple[str, ...] = ()

    def trust(self, context: ssl.SSLContext) -> None:
        """Make a TLS context refuse the handshakes of clients without a certificate of the authority.

        Raises:
            ValueError: the authority cannot be used (``ssl.SSLError``).
        """
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority)

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return True if the name in a client's certificate is accepted.

        Args:
            certificate: the certificate of a completed handshake (``ssl.SSLSocket.getpeercert``); None if there is
                none.
        """
        if not self.names:
            return certificate is not None
        subject = (certificate or {}).get("subject", ())
        return any(key == "commonName" and value in self.names for part in subject for key, value in part)
