"""Lists as a reader wants them: filtered by what stands in the URL, and a page at a time."""

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
    """One page of a list. ``before`` and ``after`` are query strings, empty at the ends; ``found`` of ``total`` match."""

    items: Sequence[Any]
    first: int
    found: int
    total: int
    before: str
    after: str


def whole_number(query: Query, name: str, *, least: int, most: int, default: int) -> int:
    """A number from the URL; whatever is not one, or is out of bounds, is the nearest that makes sense."""
    text = query.get(name, "")
    return min(most, max(least, int(text))) if text.isascii() and text.isdigit() and len(text) < 10 else default


def part_of(items: Sequence[Item], query: Query, *, total: int = -1) -> ListPart:
    """The part of the list that the URL's ``page`` and ``rows`` say; a page behind the last one is the last one."""
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
    """Those whose facets are what the URL says, and in one of which ``q`` is found, without regard to case."""
    wanted = {name: value for name, value in query.items() if name in facets and value}
    text = query.get("q", "").casefold()
    return [
        item
        for item in items
        if all(facets[name](item) == value for name, value in wanted.items())
        and (not text or any(text in read(item).casefold() for read in facets.values()))
    ]


def choices(items: Sequence[Item], read: Callable[[Item], str]) -> list[str]:
    """What a facet can be chosen from."""
    return sorted({read(item) for item in items} - {""})
