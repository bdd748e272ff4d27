"""Bounds of fair use that an administrator may change."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What one user, or all of one tenant, may take of the pool's attention. Administrators are bound by connections only."""

    waiting: Count = 1000
    waiting_of_tenant: Count = 5000
    connections: Count = 1200
    requests_per_second: Count = 50
    requests_at_once: Count = 200
