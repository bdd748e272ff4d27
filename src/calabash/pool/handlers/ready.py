"""Wait until the ports of an allocation or a server work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from calabash.model.errors import CalabashError, Reason
from calabash.node.ports.protocol import READY_WITHIN_S
from calabash.platform.handlers.request import Session

POLL_S = 0.02


async def until_nothing_lacks(session: Session, lacks: Callable[[], str]) -> None:
    """Wait until ``lacks`` returns "", without blocking a thread. Raises UNREACHABLE after READY_WITHIN_S seconds.

    Args:
        lacks: returns a text that names what does not work yet; "" if the ports work.
    """
    deadline_s = time.monotonic() + READY_WITHIN_S
    while what := await session.work(lacks):
        if time.monotonic() > deadline_s:
            raise CalabashError(
                f"{what}, after {READY_WITHIN_S:g} s", reason=Reason.UNREACHABLE, hint="see `calabash net doctor`"
            )
        await asyncio.sleep(POLL_S)
