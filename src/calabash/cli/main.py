"""Entry point of ``calabash``. Imports only the standard library's basics at first, so that it starts fast.

``calabash run`` goes directly to its implementation; everything else, including help and wrong usage of ``run``, is handled
by the command tree. Every failure, including Ctrl-C at any moment, ends with one line, a hint and a stable exit code.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def main(argv: list[str] | None = None, dispatch: Callable[[list[str]], object] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code.

    Args:
        argv: words after the program's name; default: those of the process.
        dispatch: runs the words instead of the command tree of ``calabash``.
    """
    try:
        try:
            _occupy_standard_descriptors()
            (dispatch or _dispatch)(sys.argv[1:] if argv is None else argv)
            code = _flushed()
        except Exception as error:
            from calabash.cli.failure import report  # noqa: PLC0415

            code = report(error)
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("\ninterrupted\n")
        code = 130
    sys.exit(code)


def _dispatch(words: list[str]) -> None:
    if words[:1] == ["run"] and "_CALABASH_COMPLETE" not in os.environ and not os.environ.get("CALABASH_SERVER"):
        from calabash.cli.run import become  # noqa: PLC0415

        read = become.read_words(words[1:])
        if read is not None:
            become.start(*read)
    from calabash.cli.commands import invoke  # noqa: PLC0415

    invoke(words)


def _occupy_standard_descriptors() -> None:
    """Open closed standard descriptors on /dev/null, so that no socket gets their numbers; exec closes them again.

    Their streams, which Python leaves None, read and write there too.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, and is closed by exec
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _flushed() -> int:
    """Flush the output while a failure can still be reported; return 0."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return 0


if __name__ == "__main__":
    main()
