"""Types of console pages: a page's path, template and data, the visit, and the actions of forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from calabash.api.route import Route

Shape = TypeVar("Shape", bound=msgspec.Struct)
Shown = Mapping[str, Any]


class PagePool(Protocol):
    """Client of the pool with the rights of the visitor."""

    async def get(self, route: Route[Shape], *values: str, query: Mapping[str, str] | None = None) -> Shape:
        """Return the decoded reply to a GET. Raises CalabashError with the pool's reason.

        Args:
            values: values of the variable segments of the route's path.
            query: parameters of the query string.
        """

    async def pages(self, route: Route[Any], *values: str, query: Mapping[str, str] | None = None) -> list[Any]:
        """Return all items of a list; arguments as for ``get``."""

    async def send(self, method: str, path: str, body: Any, shape: type[Shape]) -> Shape:
        """Send a change and return the reply, decoded to ``shape``. Raises CalabashError with the pool's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Request of a visitor for a page.

    Args:
        pool: client of the pool with the rights of the visitor.
        path: parameters in the path of the URL.
        query: query of the URL.
        may: permissions of the visitor for the whole platform.
        now_s: time in seconds since the epoch.
        sim: name of the simulated node; "" for none.
    """

    pool: PagePool
    path: Mapping[str, str]
    query: Mapping[str, str]
    may: frozenset[str]
    now_s: float
    sim: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """Download format of a page.

    Args:
        media_type: media type of the file.
        write: returns the content of the file for the data of the page; called in a thread.
        name: returns the file name, without ending, for the data of the page.
    """

    media_type: str
    write: Callable[[Shown], bytes]
    name: Callable[[Shown], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """Page of the console.

    ``needs`` is the permission without which the page is not offered; "" offers it to all. ``files`` are the download
    formats by the value of ``format`` in the URL.
    """

    path: str
    title: str
    template: str
    read: Callable[[Visit], Awaitable[Shown]]
    section: str = ""
    needs: str = ""
    files: Mapping[str, PageFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a form: the next page, its message, and a secret that is shown once."""

    to: str
    said: str = ""
    secret: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAction:
    """Handler of a form's path."""

    path: str
    act: Callable[[Visit, Mapping[str, str]], Awaitable[Outcome]]
