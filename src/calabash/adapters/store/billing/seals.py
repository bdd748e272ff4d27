"""Digests with which a tenant can prove that an issued invoice and its usage records were not changed.

A digest is the SHA-256 of JSON in one canonical form: keys sorted, no blanks, ASCII. The *seal* of an invoice is a
digest that covers its head, its lines, and the digests of its items and of its usage records. A tenant who keeps the
seal can therefore detect a change of any of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SEAL = "seal"


def canonical(value: Any) -> bytes:
    """Return the canonical JSON of a value of a JSON column."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(values: Iterable[Any]) -> str:
    """Return the digest of a series of values, in hexadecimal digits."""
    found = hashlib.sha256()
    for value in values:
        found.update(canonical(value) + b"\n")
    return found.hexdigest()


def seal_of(head: Mapping[str, Any], document: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the seal of an invoice: the digest of its columns (``head``), document (without the seal) and lines."""
    rest = {name: value for name, value in document.items() if name != SEAL}
    return digest([dict(head), rest, *(dict(line) for line in lines)])
