"""One question and one answer of HTTP, as bytes: asked in HTTP/1.0, so the end of the connection ends the answer."""

from __future__ import annotations

import json
from typing import Any

from calabash.model.errors import CalabashError, Reason


def write_question(method: str, path: str, body: bytes = b"", *, token: str = "") -> bytes:
    """The bytes to send."""
    lines = [f"{method} {path} HTTP/1.0", "Host: localhost", f"Content-Length: {len(body)}"]
    if body:
        lines.append("Content-Type: application/json")
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def decode_answer(answer: bytes, *, who: str) -> Any:
    """JSON of an answer. Raises CalabashError: the reason that it gives, or POOL_DOWN for what is no whole answer."""
    status, content = split_answer(answer, who=who)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise _broken(who, f"its answer (status {status}) is not JSON") from None
    if status < 400:
        return value
    said = value if isinstance(value, dict) else {}
    code = said.get("reason")
    raise CalabashError(
        str(said.get("message") or f"{who} answered with status {status}"),
        reason=Reason(code) if isinstance(code, str) and code in set(Reason) else Reason.CONFLICT,
        hint=str(said.get("hint") or ""),
    )


def split_answer(answer: bytes, *, who: str) -> tuple[int, bytes]:
    """Status and body. Raises POOL_DOWN for what is no whole answer."""
    head, separator, content = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split()
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise _broken(who, "it ended the connection without a whole answer" if answer else "it ended the connection")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit() and len(content) < int(value):
            raise _broken(who, "it ended the connection in the middle of an answer")
    return int(words[1]), content


def _broken(who: str, what: str) -> CalabashError:
    return CalabashError(f"{who} does not answer: {what}", reason=Reason.POOL_DOWN, hint="see its log; try again")
