"""Encoding and decoding of one HTTP/1.0 request and answer; the end of the connection ends the answer.

Imported by ``calabash run``: imports nothing slow.
"""

from __future__ import annotations

import json

from calabash.model.errors import CalabashError, Reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

ANSWER_BYTES_MAX = 64 << 20
CHUNK_BYTES = 1 << 16


def coded(body: Any) -> bytes:
    """Return a body as JSON; b"" for None."""
    return b"" if body is None else json.dumps(body).encode()


def write_question(method: str, path: str, body: bytes = b"", *, token: str = "", host: str = "localhost") -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.0", f"Host: {host}", f"Content-Length: {len(body)}"]
    if body:
        lines.append("Content-Type: application/json")
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def decode_answer(answer: bytes, *, who: str) -> Any:
    """Return the decoded body of an answer.

    Args:
        who: the server in messages, such as "the pool".

    Raises CalabashError with the reason that the answer states, or POOL_DOWN if the answer is not complete.
    """
    return decode_content(*split_answer(answer, who=who), who=who)


def decode_content(status: int, content: bytes, *, who: str) -> Any:
    """Return the decoded body of an answer with this status.

    Raises CalabashError with the reason that the body states, or POOL_DOWN if the body is not JSON.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise broken(who, f"its answer (status {status}) is not JSON") from None
    if status < 400:
        return value
    raise refusal(value, status=status, who=who)


def refusal(value: Any, *, status: int, who: str) -> CalabashError:
    """Return the error that a body of type ``Failure`` describes."""
    said = value if isinstance(value, dict) else {}
    code = said.get("reason")
    return CalabashError(
        str(said.get("message") or f"{who} answered with status {status}"),
        reason=Reason(code) if isinstance(code, str) and code in set(Reason) else Reason.CONFLICT,
        hint=str(said.get("hint") or ""),
    )


def split_answer(answer: bytes, *, who: str) -> tuple[int, bytes]:
    """Return status and body. Raises POOL_DOWN if the answer is not complete."""
    head, separator, content = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split()
    if not answer:
        raise broken(who, "it ended the connection without an answer")
    if not words or not words[0].startswith(b"HTTP/"):
        raise broken(who, "it speaks no HTTP")
    if not separator:
        raise broken(who, "it ended the connection in the middle of an answer")
    if len(words) < 2 or not words[1].isdigit():
        raise broken(who, "it speaks no HTTP")
    if len(content) < _content_length(lines):
        raise broken(who, "it ended the connection in the middle of an answer")
    return int(words[1]), content


def _content_length(lines: list[bytes]) -> int:
    """Return the length of the body; 0 if the answer does not state it."""
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return 0


def broken(who: str, what: str) -> CalabashError:
    """Return the error POOL_DOWN of server ``who`` for an answer that is incomplete or malformed."""
    return CalabashError(f"{who} does not answer: {what}", reason=Reason.POOL_DOWN, hint="see its log; try again")
