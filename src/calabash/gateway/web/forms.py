"""Convert the fields of a form to the path and body of a request to the pool. The pool checks the values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from calabash.api.endpoints import Endpoint
from calabash.model.errors import CalabashError
from calabash.model.tenancy import parse_network_bounds
from calabash.model.units import parse_duration_s, parse_memory_mib

Given = Mapping[str, str]
Reader = Callable[[str], Any]


def text(value: str) -> str:
    """Return the value without surrounding blanks."""
    return value.strip()


def whole(value: str) -> int:
    """Parse a whole number. Raises CalabashError if the value is not one."""
    if re.fullmatch(r"[+-]?[0-9]{1,15}", value.strip()) is None:
        raise CalabashError(f"{value[:40]!r} is not a whole number", hint="write digits only")
    return int(value)


def decimal(value: str) -> float:
    """Parse a decimal number. Raises CalabashError if the value is not one."""
    if re.fullmatch(r"[+-]?[0-9]{1,15}([.][0-9]{1,9})?", value.strip()) is None:
        raise CalabashError(f"{value[:40]!r} is not a number", hint="write 2 or 0.5, for example")
    return float(value)


def decimal_or_none(value: str) -> float | None:
    """Parse a decimal number, or ``none`` for no limit. Raises CalabashError if the value is neither."""
    return None if value.strip().lower() == "none" else decimal(value)


def text_or_none(value: str) -> str:
    """Return the value without surrounding blanks; ``none`` becomes ""."""
    return "" if value.strip().lower() == "none" else value.strip()


def flag(value: str) -> bool:
    """Return True if a check box is ticked."""
    return value in {"on", "1", "true", "yes"}


def words(value: str) -> list[str]:
    """Split names at commas and blanks."""
    return [word for word in re.split(r"[\s,]+", value) if word]


def network_bounds(value: str) -> dict[str, int]:
    """Parse limits of network objects by kind; ``none`` means no limits.

    Raises CalabashError if the value is invalid.
    """
    return {str(kind): most for kind, most in parse_network_bounds(text_or_none(value)).items()}


MEMORY: Reader = parse_memory_mib
DURATION: Reader = parse_duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Form of a page: the request that it sends to the pool, and the page that is shown next.

    Args:
        name: last part of the form's path, ``/do/NAME``.
        needs: permission that the visitor must have for the page to offer the form; "" offers it to all.
        endpoint: endpoint of the pool that the form calls.
        at: names of the fields whose values are put into the variable segments of the endpoint's path, in their order;
            these fields are not part of the body. None: the fields have the same names as the segments.
        back: page shown next; ``{NAME}`` is filled from the reply or a field.
        said: message on the next page, with the same placeholders.
        fields: parser of each field of the body; empty fields are left out.
        blank: values for fields that the user has left empty, if these are to be sent and not left out.
        query: parser of each field of the query string.
        shaped: builds the body from the parsed fields, if it differs from them.
    """

    name: str
    needs: str
    endpoint: Endpoint
    back: str
    said: str
    at: tuple[str, ...] | None = None
    fields: Mapping[str, Reader] = field(default_factory=dict)
    blank: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Reader] = field(default_factory=dict)
    shaped: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def request(self, form: Given) -> tuple[str, dict[str, Any] | None]:
        """Return the path and body of the request to the pool. Raises CalabashError that names the invalid field."""
        values = [form.get(name, "") for name in (self.endpoint.variables if self.at is None else self.at)]
        if not all(values):
            raise CalabashError("the name is missing", hint="fill in the name")
        path = self.endpoint.at(*values)
        asked = {name: str(value) for name, value in _read(self.query, form).items()}
        body = None if self.endpoint.method == "DELETE" else self.shaped(self._cleared(form) | _read(self.fields, form))
        return path + (f"?{urlencode(asked)}" if asked else ""), body

    def _cleared(self, form: Given) -> dict[str, Any]:
        return {name: value for name, value in self.blank.items() if name in form and not form[name].strip()}

    def page(self, form: Given, reply: Any) -> str:
        """Return the path of the page to show next."""
        answered = reply if isinstance(reply, dict) else {}
        known = {name: quote(str(answered.get(name, form.get(name, ""))), safe="") for name in _names(self.back)}
        return self.back.format_map(known)

    def message(self, form: Given, reply: Any) -> str:
        """Return the message for the next page."""
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
