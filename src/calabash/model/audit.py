"""Audit log lines and the hash chain that makes changes of the log detectable (pure).

Every line has a seal: an HMAC-SHA256 of its own fields and of the seal of the previous line. The key is stored outside the
database. A line that is changed, removed or inserted without the key breaks the chain at that line. Truncation of the log is
detected by the head, the number and seal of the last line, which is stored next to the key.
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
    """One audited action: user, origin, action, target and outcome.

    Args:
        id: number of the line, from 1 and without gaps.
        at: seconds since 1970.
        user: the user that acted; "pool" for the pool itself.
        token: ID of the API token of the request; "" for none.
        origin: account and process of this machine, or a network address.
        tenant: the tenant that the action concerns; "" for the platform.
        action: the method of a request, or the action of the pool.
        target: the object of the action.
        outcome: HTTP status.
        reason: reason of a refusal, or the reason for which the pool acted.
        seal: the line's HMAC in hexadecimal digits; "" before it is sealed.
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
    """Number and seal of one line: the last sealed line, or the last line that retention deleted."""

    id: int = 0
    seal: str = FIRST_SEAL


def seal_line(line: AuditLine, after: AuditHead, key: bytes) -> AuditLine:
    """Return the line with its number and seal as the successor of ``after``."""
    line = replace(line, id=after.id + 1)
    return replace(line, seal=_seal(line, after.seal, key))


def verify_chain(lines: Iterable[AuditLine], after: AuditHead, key: bytes) -> tuple[AuditHead, str]:
    """Verify the chain of lines.

    Returns:
        The last valid line, and the fault of the next line; the fault is "" if all lines are valid.
    """
    for line in lines:
        if line.id != after.id + 1:
            return after, f"line {after.id + 1} is missing"
        if not hmac.compare_digest(_seal(line, after.seal, key), line.seal):
            return after, f"line {line.id} was changed after it was written"
        after = AuditHead(id=line.id, seal=line.seal)
    return after, ""


def _seal(line: AuditLine, before: str, key: bytes) -> str:
    words = [line.id, repr(line.at), line.user, line.token, line.origin, line.tenant, line.action, line.target]
    text = json.dumps([before, *words, line.outcome, line.reason], separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
