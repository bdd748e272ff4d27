"""Run a billing task in a child process, so that a task that reads a million records does not delay allocations.

The parent writes the order to the child's standard input and not to its command line, which all users can read: the
database URL in the order may have a password. The child writes its answer to standard output. Both are JSON.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from calabash.adapters.host.children import DATABASE, run_module
from calabash.adapters.store import Store, open_store
from calabash.model.errors import CalabashError, Reason

NICENESS = 10
TIMEOUT_S = 900.0

log = structlog.get_logger(__name__)


class TaskOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Order to a task; ``url`` is the URL of the database."""

    url: str


class TaskAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """Answer of a task.

    If ``message`` is set, the task has failed with a CalabashError that has this reason, message and hint. The results,
    which are fields of derived classes, then have their default values.
    """

    reason: str = ""
    message: str = ""
    hint: str = ""


_Order = TypeVar("_Order", bound=TaskOrder)
_Answer = TypeVar("_Answer", bound=TaskAnswer)


def serve_task(order: type[_Order], answer: type[_Answer], task: Callable[[Store, _Order], _Answer]) -> int:
    """Read the order from standard input, run the task and write its answer; return the exit status."""
    os.nice(NICENESS)
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=order)
    try:
        store = open_store(given.url)
        try:
            found = task(store, given)
        finally:
            store.close()
    except CalabashError as error:
        found = answer(reason=str(error.reason), message=error.message, hint=error.hint)
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


def run_task(module: str, order: TaskOrder, answer: type[_Answer], *, what: str) -> _Answer:
    """Run a module that calls ``serve_task`` in a child process, and return its answer.

    Args:
        module: name of the Python module.
        order: order for the task.
        answer: type of the answer.
        what: name of the task in errors.

    Raises CalabashError: the error of the answer, TIMEOUT after ``TIMEOUT_S`` seconds, or CONFLICT if the process failed.
    """
    try:
        done = run_module(module, inherit=DATABASE, text=msgspec.json.encode(order), timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CalabashError(
            f"{what} took longer than {TIMEOUT_S:.0f}s", reason=Reason.TIMEOUT, hint="try it again"
        ) from None
    try:
        found = msgspec.json.decode(done.stdout, type=answer)
    except msgspec.DecodeError:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        log.error("a process of billing failed", what=what, status=done.returncode, said=words[-1:] or [""])
        raise CalabashError(
            f"{what} failed with status {done.returncode}", reason=Reason.CONFLICT, hint="see pool.log"
        ) from None
    if found.message:
        raise CalabashError(found.message, reason=Reason(found.reason), hint=found.hint)
    return found
