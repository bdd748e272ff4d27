"""What a form says as the body of a request to the pool. Here text becomes numbers; whether they are allowed, the pool says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from calabash.model.errors import CalabashError
from calabash.model.tenancy import parse_network_bounds
from calabash.model.units import parse_duration_s, parse_memory_mib

Given = Mapping[str, str]
Reader = Callable[[str], Any]


def text(value: str) -> str:
    """As it was typed, without blanks around it."""
    return value.strip()


def whole(value: str) -> int:
    """A whole number. Raises CalabashError."""
    if re.fullmatch(r"[+-]?[0-9]{1,15}", value.strip()) is None:
        raise CalabashError(f"{value[:40]!r} is not a whole number", hint="write digits only")
    return int(value)


def decimal(value: str) -> float:
    """A number with or without a point. Raises CalabashError."""
    if re.fullmatch(r"[+-]?[0-9]{1,15}([.][0-9]{1,9})?", value.strip()) is None:
        raise CalabashError(f"{value[:40]!r} is not a number", hint="for example 2 or 0.5")
    return float(value)


def decimal_or_none(value: str) -> float | None:
    """The same, or ``none`` for no bound. Raises CalabashError."""
    return None if value.strip().lower() == "none" else decimal(value)


def text_or_none(value: str) -> str:
    """As it was typed; ``none`` is the empty text."""
    return "" if value.strip().lower() == "none" else value.strip()


def flag(value: str) -> bool:
    """A box that is ticked."""
    return value in {"on", "1", "true", "yes"}


def words(value: str) -> list[str]:
    """Names, with commas or blanks between them."""
    return [word for word in re.split(r"[\s,]+", value) if word]


def network_bounds(value: str) -> dict[str, int]:
    """Most objects of networks by kind; ``none`` for no bounds. Raises CalabashError."""
    return {str(kind): most for kind, most in parse_network_bounds(text_or_none(value)).items()}


MEMORY: Reader = parse_memory_mib
DURATION: Reader = parse_duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Something that a page offers: a form, the route of the pool that it asks, and the page that is shown then.

    Args:
        name: of the form's address, ``/do/NAME``.
        needs: what the principal must be allowed to, for the page to offer it; the pool decides again.
        path: of the pool's route; ``{…}`` is filled from the form, and does not go into the body.
        fields: how each field of the form is read; one that is empty is left out of the body.
        blank: what a field that is there and empty says, where that is not nothing.
        query: fields that go into the query string instead.
        back: the page shown afterwards; ``{…}`` from the form, or from the reply.
        said: what is told then.
        shaped: makes the body of what was read, where that is more than its fields.
    """

    name: str
    needs: str
    method: str
    path: str
    back: str
    said: str
    fields: Mapping[str, Reader] = field(default_factory=dict)
    blank: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Reader] = field(default_factory=dict)
    shaped: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def request(self, form: Given) -> tuple[str, dict[str, Any] | None]:
        """The path and the body that it asks the pool with. Raises CalabashError that names the field."""
        path = self.path.format_map({name: quote(form.get(name, ""), safe="") for name in _names(self.path)})
        if "//" in path or path.endswith("/"):
            raise CalabashError("the form does not say what it is about", hint="name it")
        asked = {name: str(value) for name, value in _read(self.query, form).items()}
        body = None if self.method == "DELETE" else self.shaped(self._cleared(form) | _read(self.fields, form))
        return path + (f"?{urlencode(asked)}" if asked else ""), body

    def _cleared(self, form: Given) -> dict[str, Any]:
        return {name: value for name, value in self.blank.items() if name in form and not form[name].strip()}

    def page(self, form: Given, reply: Any) -> str:
        """The page that is shown when it is done; always one of the console's own."""
        answered = reply if isinstance(reply, dict) else {}
        known = {name: quote(str(answered.get(name, form.get(name, ""))), safe="") for name in _names(self.back)}
        return self.back.format_map(known)

    def told(self, form: Given, reply: Any) -> str:
        """What the next page says of it."""
        answered = reply if isinstance(reply, dict) else {}
        return self.said.format_map({n: str(answered.get(n, form.get(n, "")))[:200] for n in _names(self.said)})


def _names(template: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", template)


def _read(readers: Mapping[str, Reader], form: Given) -> dict[str, Any]:
    found = {}
    for name, read in readers.items():
        value = form.get(name, "")
        if not value.strip():
            continue
        try:
            found[name] = read(value)
        except CalabashError as error:
            raise CalabashError(f"{name.replace('_', ' ')}: {error.message}", hint=error.hint) from None
    return found
