"""What the routes of one machine ask of a request besides those of operating: the pool, and what is known of its machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calabash.platform.handlers.request import Asked
from calabash.pool.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the routes need besides the pool."""

    home: Path
    sim: str
    simulation: dict[str, str]  # environment that leads a program to the simulated node
    driver: str
    arbiter_pid: Callable[[], int]
    console: str = ""  # where a browser finds it; empty: nowhere
    console_failure: str = ""  # why it is nowhere


def pool_of(request: Asked) -> Pool:
    """The pool that serves."""
    pool: Pool = request.app.state.pool
    return pool
