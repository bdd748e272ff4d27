"""Context of the routes of one machine: the pool and facts of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calabash.platform.handlers.request import Asked
from calabash.pool.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Facts of the machine and of the daemon that API routes report.

    Args:
        home: home directory of the pool.
        sim: name of the simulated node; "" if the devices are real.
        driver: vendor and driver version of each driver, for display.
        arbiter_pid: returns the process ID of the arbiter, which grants time windows on shared devices.
    """

    home: Path
    sim: str
    simulation: dict[str, str]  # environment of programs on the simulated node
    driver: str
    arbiter_pid: Callable[[], int]
    console: str = ""  # URL of the console; empty if it is off
    console_failure: str = ""  # error that kept the console from starting


def pool_of(request: Asked) -> Pool:
    """Return the pool of a request."""
    pool: Pool = request.app.state.pool
    return pool
