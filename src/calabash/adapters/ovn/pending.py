"""Transaction that one thread requests and the thread of the session sends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from calabash.model.errors import CalabashError, Reason


class Pending:
    """Operations of a transaction, and their result.

    When the event ``done`` is set, either ``answer`` has the server's results, or ``lost`` the reason why the
    connection was lost.
    """

    __slots__ = ("answer", "done", "lost", "operations")

    def __init__(self, operations: Sequence[Mapping[str, Any]]) -> None:
        self.operations = operations
        self.done = threading.Event()
        self.answer: Mapping[str, Any] | None = None
        self.lost = ""


def results_of(pending: Pending, database: str) -> list[Any]:
    """Return the results of a completed transaction.

    Raises CalabashError if an operation failed, and then none has an effect, or if the connection was lost.
    """
    if pending.answer is None:
        raise CalabashError(
            f"{database} was lost during a transaction, whose outcome is unknown: {pending.lost}",
            reason=Reason.UNREACHABLE,
        )
    told = pending.answer.get("error")
    results = pending.answer.get("result")
    if told or not isinstance(results, list):
        raise CalabashError(f"{database} refuses a transaction: {told!r:.500}", reason=Reason.CONFLICT)
    for place, result in enumerate(results):
        if isinstance(result, dict) and "error" in result:
            raise _refused(pending, place, result, database)
    if len(results) != len(pending.operations) or None in results:
        raise CalabashError(f"{database} answered {len(results)} of {len(pending.operations)} operations")
    return results


def _refused(pending: Pending, place: int, result: Mapping[str, Any], database: str) -> CalabashError:
    word, details = str(result["error"]), str(result.get("details", ""))
    if word == "not owner":
        return CalabashError(
            f"another controller has the lock of {database}",
            reason=Reason.CONFLICT,
            hint="it takes over when that one ends; see `calabash net doctor`",
        )
    if place < len(pending.operations):
        operation = pending.operations[place]
        what = f"{operation.get('op', '')} {operation.get('table', '')}".strip()
    else:
        what = "the whole"
    return CalabashError(f"{database} refuses {what}: {word}: {details:.500}", reason=Reason.CONFLICT)
