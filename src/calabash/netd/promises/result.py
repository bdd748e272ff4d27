"""What became of one promise of a VPC."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseTried:
    """``held`` None: it could not be tried, and ``detail`` says why."""

    promise: str
    held: bool | None
    detail: str = ""
