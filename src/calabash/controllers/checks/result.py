"""Result of one connectivity check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectivityResult:
    """Result of one check of the connectivity of a VPC.

    Args:
        promise: sentence about the network that was tested.
        held: True if the sentence is true, False if not; None if it could not be tested, for the reason in ``detail``.
        detail: explanation or measured value; "" for none.
    """

    promise: str
    held: bool | None
    detail: str = ""
