"""Result of one connectivity check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectivityResult:
    """Result of one check.

    Args:
        held: True or False; None if the promise could not be tried, for the reason in ``detail``.
    """

    promise: str
    held: bool | None
    detail: str = ""
