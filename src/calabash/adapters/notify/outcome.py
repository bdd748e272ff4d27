"""Error of a receiver that refuses a notice permanently."""

from __future__ import annotations

from calabash.model.errors import CalabashError


class RefusedForGoodError(CalabashError):
    """The receiver would refuse the notice again."""
