"""One route of the API as data: what is asked and answered where."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path; ``note`` is what the shapes do not say."""

    method: str
    path: str
    summary: str
    reply: type[msgspec.Struct]
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    administrators: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"
