"""Report exceptions as one message with a hint, and map them to exit codes.

The table of exit codes is also printed in the man page and in the reference. If its program has started, ``calabash run``
ends with the program's exit code instead.
"""

from __future__ import annotations

import errno
import os
import sys

from calabash.model.errors import CalabashError, Reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

# Exit code -> its meaning, and the reasons of errors that end a command with it; all other reasons end it with 1.
EXIT_CODES: dict[int, tuple[str, tuple[Reason, ...]]] = {
    0: ("success", ()),
    1: ("failure", ()),
    2: ("wrong usage", (Reason.BAD_REQUEST, Reason.UNKNOWN_MODE)),
    3: ("an object does not exist", (Reason.NOT_FOUND,)),
    4: ("not permitted or not logged in", (Reason.NOT_PERMITTED, Reason.NOT_AUTHENTICATED)),
    5: (
        "the request does not fit, or still waits",
        (
            Reason.NO_DEVICES,
            Reason.TOO_LARGE,
            Reason.NO_CAPACITY,
            Reason.NO_MEMORY,
            Reason.NO_CORES,
            Reason.NO_CPU,
            Reason.NO_HOST_MEMORY,
            Reason.SELECTOR_MISMATCH,
            Reason.MODE_CONFLICT,
            Reason.TAINTED,
            Reason.TOPOLOGY,
            Reason.UNHEALTHY,
            Reason.GANG_INCOMPLETE,
            Reason.QUEUE_OVER_LIMIT,
            Reason.QUEUE_OVER_DESERVED,
            Reason.RESERVED,
            Reason.WAITS_FOR_MOVE,
            Reason.RECLAIM,
            Reason.PREEMPT,
        ),
    ),
    6: ("timeout", (Reason.TIMEOUT,)),
    130: ("interrupted", ()),
}
_OF_REASON = {reason: code for code, (_, reasons) in EXIT_CODES.items() for reason in reasons}
_NOT_OURS = "choose a path that you may write to; CALABASH_HOME sets the home of the pool"
_HINTS = {
    errno.EACCES: _NOT_OURS,
    errno.EPERM: _NOT_OURS,
    errno.EROFS: _NOT_OURS,
    errno.ENOTDIR: _NOT_OURS,
    errno.EEXIST: _NOT_OURS,
    errno.ENOSPC: "free disk space, or choose another path",
    errno.EDQUOT: "free disk space, or choose another path",
    errno.ENOENT: "check the path",
    errno.EISDIR: "give the path of a file, not of a directory",
}


def exit_code(reason: Reason) -> int:
    """Return the exit code of a reason."""
    return _OF_REASON.get(reason, 1)


def report(error: BaseException) -> int:
    """Print the error on stderr and return the exit code; raise unknown exceptions again, which prints their traceback."""
    if isinstance(error, ImportError):
        from calabash.model.extras import missing_import  # noqa: PLC0415 - not needed by most commands

        error = missing_import(error) or error
    if isinstance(error, CalabashError):
        print_on_stderr("error: " + error.message)
        if error.hint:
            print_on_stderr("hint: " + error.hint)
        return exit_code(error.reason)
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return 0
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        print_on_stderr(f"error: {where}{error.strerror or error}")
        if error.errno in _HINTS:
            print_on_stderr(f"hint: {_HINTS[error.errno]}")
        _discard_output()
        return 3 if isinstance(error, FileNotFoundError) else 1
    return _report_click_error(error)


def print_on_stderr(line: str) -> None:
    """Print one line on stderr, with line breaks removed; nothing if there is no stderr."""
    if sys.stderr is None:
        return
    try:
        print(" ".join(line.splitlines()), file=sys.stderr)
    except OSError:
        return


def _discard_output() -> None:
    """Discard buffered output, so that the interpreter does not try to write it again at exit."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            sys.stdout = None


def _report_click_error(error: BaseException) -> int:
    """Report an error of click; raise other errors again."""
    import click  # noqa: PLC0415 - not needed by `run`

    if isinstance(error, click.Abort):
        print_on_stderr("interrupted")
        return 130
    if not isinstance(error, click.ClickException):
        raise error
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    message, hint = _usage(error)
    print_on_stderr("error: " + message)
    print_on_stderr("hint: " + hint)
    return error.exit_code


_WORDS = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}


def _usage(error: Any) -> tuple[str, str]:
    """Return the message and the hint of a usage error."""
    near = getattr(error, "possibilities", None)
    message = (error.message if near is not None else error.format_message()).strip().rstrip(".")
    for words, instead in _WORDS.items():
        message = message.replace(words, instead)
    context = getattr(error, "ctx", None)
    usage = "see `calabash --help`"
    if context is not None:
        words = " ".join(context.get_usage().split()).removeprefix("Usage: ")
        usage = f"write {words}; see `{context.command_path} --help`"
    if near:
        usage = f"did you mean {' or '.join(near)}? See `{context.command_path if context else 'calabash'} --help`"
    return message[:1].lower() + message[1:], usage
