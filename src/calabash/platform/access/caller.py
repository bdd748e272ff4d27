"""The caller of an API request: its connection, process and principal."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.adapters.host.processes import Peer, Process
from calabash.model.tenancy import NOBODY, Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of one API request.

    Permissions are checked for the principal only. Peer and principal are the same user only if ``principal.local`` is true.

    Args:
        peer: credentials of the process at the other end of the connection.
        process: the process at the other end; None if it has ended or could not be identified, or if the request came
            with a token.
        principal: the authenticated user.
    """

    peer: Peer
    process: Process | None = None
    principal: Principal = NOBODY
