"""Filter lists by the query of the URL and divide them into pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

ROWS = 50
ROWS_MAX = 500
Item = TypeVar("Item")
Query = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPart:
    """One page of a list.

    ``first`` is the number of its first item, counted from 1. ``found`` of ``total`` items match the filter. ``before``
    and ``after`` are the query strings of the neighbouring pages, "" at the ends.
    """

    items: Sequence[Any]
    first: int
    found: int
    total: int
    before: str
    after: str


def whole_number(query: Query, name: str, *, least: int, most: int, default: int) -> int:
    """Return a whole number of the query, clamped to the bounds; ``default`` if it is missing or not a number."""
    text = query.get(name, "")
    return min(most, max(least, int(text))) if text.isascii() and text.isdigit() and len(text) < 10 else default


def part_of(items: Sequence[Item], query: Query, *, total: int = -1) -> ListPart:
    """Return one page of a list.

    Args:
        items: the items that match the filter.
        query: query of the URL: ``page`` is the number of the page, from 1, and ``rows`` the number of items on it. If
            ``page`` is too large, the last page is returned.
        total: number of items before the filter; -1 for the number of ``items``.
    """
    rows = whole_number(query, "rows", least=1, most=ROWS_MAX, default=ROWS)
    last = max(0, (len(items) - 1) // rows)
    page = whole_number(query, "page", least=1, most=last + 1, default=1) - 1

    def to(number: int) -> str:
        return "?" + urlencode({**{k: v for k, v in query.items() if k != "page" and v}, "page": str(number + 1)})

    begin = page * rows
    return ListPart(
        items=items[begin : begin + rows],
        first=begin + 1 if items else 0,
        found=len(items),
        total=len(items) if total < 0 else total,
        before=to(page - 1) if page else "",
        after=to(page + 1) if page < last else "",
    )


def matching(items: Sequence[Item], query: Query, facets: Mapping[str, Callable[[Item], str]]) -> list[Item]:
    """Return the items that match the filter in the query of the URL.

    An item must have the value of each facet that the query names, and contain the text ``q`` in one of its facets,
    without regard to case.

    Args:
        items: the items.
        query: query of the URL.
        facets: by name, functions that return a property of an item as text.
    """
    wanted = {name: value for name, value in query.items() if name in facets and value}
    text = query.get("q", "").casefold()
    return [
        item
        for item in items
        if all(facets[name](item) == value for name, value in wanted.items())
        and (not text or any(text in read(item).casefold() for read in facets.values()))
    ]


def choices(items: Sequence[Item], read: Callable[[Item], str]) -> list[str]:
    """Return the sorted distinct values of a property, without the empty one, for a list of choices."""
    return sorted({read(item) for item in items} - {""})
