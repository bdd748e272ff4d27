"""Lines of the audit log and the chain that joins them (pure).

Every line carries a seal over its own words and the seal of the line before it, made with a key that is kept outside the
database. Whoever changes, removes or inserts a line without the key breaks the chain there; whoever cuts off the end is found
out by the head, the last line that was sealed, which is kept beside the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

FIRST_SEAL = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """Who did what from where, and what came of it.

    Args:
        id: its number, from 1 and without gaps.
        at: seconds since 1970.
        user, token: who; "pool" is the pool itself. ``token``: the id of the token that it came with.
        origin: account and process of this machine, or a network address.
        tenant: whose matter it is; "" is the platform's.
        action: the method of a request, or what the pool did.
        target: what it was done to.
        outcome: HTTP status; ``reason`` says why it was refused, or why the pool did it.
    """

    id: int = 0
    at: float
    user: str
    token: str = ""
    origin: str = ""
    tenant: str = ""
    action: str
    target: str = ""
    outcome: int = 200
    reason: str = ""
    seal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead:
    """The last line that was sealed, or the last one that retention has taken away."""

    id: int = 0
    seal: str = FIRST_SEAL


def sealed(line: AuditLine, after: AuditHead, key: bytes) -> AuditLine:
    """The line as the next one of the chain."""
    line = replace(line, id=after.id + 1)
    return replace(line, seal=_seal(line, after.seal, key))


def first_broken(lines: Iterable[AuditLine], after: AuditHead, key: bytes) -> tuple[AuditHead, str]:
    """Follow the chain: the last line that holds, and what is wrong with the next one; "" when all hold."""
    for line in lines:
        if line.id != after.id + 1:
            return after, f"line {after.id + 1} is missing"
        if not hmac.compare_digest(_seal(line, after.seal, key), line.seal):
            return after, f"line {line.id} is not what was written"
        after = AuditHead(id=line.id, seal=line.seal)
    return after, ""


def _seal(line: AuditLine, before: str, key: bytes) -> str:
    words = [line.id, repr(line.at), line.user, line.token, line.origin, line.tenant, line.action, line.target]
    text = json.dumps([before, *words, line.outcome, line.reason], separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
