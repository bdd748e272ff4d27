"""Digests that prove what an issued invoice was made of, and that it is as it was issued.

A digest is the SHA-256 of JSON in one canonical form: keys sorted, no blanks, ASCII. The *seal* of an invoice covers its head,
its lines, and the digests of its items and of its usage records, so one number that a tenant keeps stands for all of it.
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
    """Return the digest of a series of values."""
    found = hashlib.sha256()
    for value in values:
        found.update(canonical(value) + b"\n")
    return found.hexdigest()


def seal_of(head: Mapping[str, Any], document: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the seal of an invoice: a digest of its columns, its document without the seal, and its lines."""
    rest = {name: value for name, value in document.items() if name != SEAL}
    return digest([dict(head), rest, *(dict(line) for line in lines)])
