"""Bodies of requests to the pool and of its answers, and the errors of answers that are not complete.

Imported by ``calabash run``: imports nothing slow.
"""

from __future__ import annotations

import json

from calabash.model.errors import CalabashError, Reason
from calabash.transport.http1_client import ClosedError, HttpError, NotHttpError

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

ANSWER_BYTES_MAX = 64 << 20
CHUNK_BYTES = 1 << 16


def coded(body: Any) -> bytes:
    """Return a body as JSON; b"" for None."""
    return b"" if body is None else json.dumps(body).encode()


def decode_content(status: int, content: bytes, *, who: str) -> Any:
    """Return the decoded body of an answer; ``who`` names the server in errors.

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
    """Return the error that a decoded body of type ``Failure`` describes; ``who`` names the server."""
    said = value if isinstance(value, dict) else {}
    code = said.get("reason")
    return CalabashError(
        str(said.get("message") or f"{who} answered with status {status}"),
        reason=Reason(code) if isinstance(code, str) and code in set(Reason) else Reason.CONFLICT,
        hint=str(said.get("hint") or ""),
    )


def broken(who: str, what: str) -> CalabashError:
    """Return the error POOL_DOWN of server ``who`` for an answer that is incomplete or malformed."""
    return CalabashError(f"{who} does not answer: {what}", reason=Reason.POOL_DOWN, hint="see its log; try again")


def broken_by(who: str, error: HttpError) -> CalabashError:
    """Return the error POOL_DOWN of server ``who`` for an answer whose reading failed with ``error``."""
    if isinstance(error, NotHttpError):
        return broken(who, "it speaks no HTTP")
    if isinstance(error, ClosedError):
        where = "in the middle of an answer" if error.begun else "without an answer"
        return broken(who, f"it ended the connection {where}")
    return broken(who, str(error))
