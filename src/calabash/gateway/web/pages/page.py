"""What a page is: a path, the template that shows it, and how what it shows comes from the pool's replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

Shape = TypeVar("Shape", bound=msgspec.Struct)
Shown = Mapping[str, Any]


class Asker(Protocol):
    """The pool, asked by whoever looks at the page and with no other rights."""

    async def get(self, path: str, shape: type[Shape]) -> Shape:
        """One reply. Raises CalabashError with the pool's reason."""

    async def pages(self, path: str, shape: type[Any]) -> list[Any]:
        """All items of a list, page by page."""

    async def send(self, method: str, path: str, body: Any, shape: type[Shape]) -> Shape:
        """Something is to be changed. Raises CalabashError with the pool's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Somebody looks at a page: the pool, what the path and the URL say, what he or she may do on the platform, and when."""

    pool: Asker
    path: Mapping[str, str]
    query: Mapping[str, str]
    may: frozenset[str]
    now_s: float
    sim: str = ""

    def quoted(self, name: str) -> str:
        """Return that part of the path as a part of the path of a request to the pool."""
        return quote(self.path[name], safe="")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """What a page is downloaded as: made of what the page shows, in a thread of its own; ``name`` without its ending."""

    media_type: str
    write: Callable[[Shown], bytes]
    name: Callable[[Shown], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """A page of the console. ``needs`` is the action without which it is not offered; empty: everybody. ``files``: what it can
    be downloaded as, by what ``format`` in the URL says."""

    path: str
    title: str
    template: str
    read: Callable[[Visit], Awaitable[Shown]]
    section: str = ""
    needs: str = ""
    files: Mapping[str, PageFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What comes after a form: the page to go to, what it says of it, and a secret that it shows this once."""

    to: str
    said: str = ""
    secret: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAction:
    """What a form is posted to."""

    path: str
    act: Callable[[Visit, Mapping[str, str]], Awaitable[Outcome]]
