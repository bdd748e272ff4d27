"""What a receiver that does not take a notice says of it."""

from __future__ import annotations

from calabash.model.errors import CalabashError


class RefusedForGoodError(CalabashError):
    """It would be refused again."""
