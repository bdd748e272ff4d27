"""Errors of calls to the API server, with reasons and hints."""

from __future__ import annotations

import msgspec

from calabash.model.errors import CalabashError, Reason

_TEXT_MAX = 1024
_REASONS = {400: Reason.BAD_REQUEST, 415: Reason.BAD_REQUEST, 422: Reason.BAD_REQUEST, 413: Reason.TOO_LARGE}
_RETRIED = frozenset((408, 425, 429))  # client errors that may pass
_REASONS |= {401: Reason.NOT_PERMITTED, 403: Reason.NOT_PERMITTED, 404: Reason.NOT_FOUND, 409: Reason.CONFLICT}
_HINTS = {
    Reason.NOT_PERMITTED: "the service account lacks this right: see the chart's RBAC, or `kubectl auth can-i`",
    Reason.API_DOWN: "the API server is not reachable or overloaded; the call is retried",
    Reason.CONFLICT: "the object was changed meanwhile; read it again",
    Reason.NOT_FOUND: "the object is gone, or its kind is not installed (charts/calabash/crds)",
}


class KubeError(CalabashError):
    """Failed call to the API server.

    Args:
        message: the call and the answer.
        reason: NOT_FOUND, CONFLICT, NOT_PERMITTED, BAD_REQUEST, TOO_LARGE or API_DOWN.
        status: the HTTP status; 0 if there was no answer.
        cause: the API server's reason ("AlreadyExists", "Conflict", ...); "" if it gave none.
        retry_after_s: time after which the API server asks to retry.
    """

    def __init__(
        self, message: str, *, reason: Reason, status: int = 0, cause: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, reason=reason, hint=_HINTS.get(reason, ""))
        self.status = status
        self.cause = cause
        self.retry_after_s = retry_after_s


def is_final(error: CalabashError) -> bool:
    """Return True if the API server would refuse the same call again.

    Returns False for temporary errors: the API server is down or busy, or the object was changed or is missing.
    """
    return error.reason not in (Reason.API_DOWN, Reason.CONFLICT, Reason.NOT_FOUND)


def status_of(error: CalabashError) -> int:
    """Return the HTTP status of the answer; 0 if there was none."""
    return error.status if isinstance(error, KubeError) else 0


class Expired(KubeError):  # noqa: N818 - the word of the API server
    """Error for a resource version that is older than the API server's history.

    The caller must list the objects again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.CONFLICT, status=410, cause="Expired")


class UnreadableObject(KubeError):  # noqa: N818 - what it is about
    """Error for an object that does not fit the type of its kind. The same call gives the same error again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.BAD_REQUEST)


class AnswerTooLarge(KubeError):  # noqa: N818 - what it is about
    """Error for an answer that has more bytes than the caller allows. A list can be read in smaller pages."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.TOO_LARGE)


class StatusCause(msgspec.Struct, frozen=True):
    """One of the causes of a refusal, with the field that it is about ("" for none)."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """Causes for which the API server refused a call, and the seconds after which to retry (0: not stated)."""

    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class StatusReply(msgspec.Struct, frozen=True):
    """``Status`` object with which the API server refuses a call."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


_DECODER = msgspec.json.Decoder(StatusReply)


def read_status(body: bytes) -> StatusReply:
    """Return the refusal in a body; a body that is not JSON is taken as the message."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return StatusReply(message=body[:_TEXT_MAX].decode(errors="replace").strip())


def error_for(asked: str, status: int, reply: StatusReply, *, retry_after_s: float = 0.0) -> KubeError:
    """Return the error for a call that the API server refused.

    Args:
        asked: the call, like "PATCH pods default/a".
        status: HTTP status of the answer.
        reply: body of the answer.
        retry_after_s: value of the Retry-After header.
    """
    said = reply.message[:_TEXT_MAX] or f"HTTP status {status}"
    if status == 410 or reply.reason == "Expired":
        return Expired(f"{asked}: {said}")
    if reply.details is not None:
        retry_after_s = max(retry_after_s, float(reply.details.retry_after_seconds))
    other = Reason.BAD_REQUEST if 400 <= status < 500 and status not in _RETRIED else Reason.API_DOWN
    reason = _REASONS.get(status, other)
    if reply.details is not None and any(cause.field == "metadata.uid" for cause in reply.details.causes):
        reason = Reason.CONFLICT  # another object has that name now
    return KubeError(
        f"{asked}: {said}",
        reason=reason,
        status=status,
        cause=reply.reason,
        retry_after_s=retry_after_s,
    )
