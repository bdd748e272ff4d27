"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.adapters.host.processes import Peer, Process
from calabash.model.tenancy import NOBODY, Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: ``peer`` is the other end of the connection, ``process`` that very process, None when it cannot be known.
    Rights are the ``principal``'s alone; the two are one user only where that is ``local``."""

    peer: Peer
    process: Process | None = None
    principal: Principal = NOBODY
