"""One request for each of several objects, up to 64 of them in flight, so that waits for programs to end overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from calabash.model.errors import CalabashError

AT_ONCE = 64  # requests in flight
_NAMED = 5  # failures that the message names


def for_each(names: Sequence[str], act: Callable[[str], object], *, done: str) -> None:
    """Call ``act`` for every name, up to ``AT_ONCE`` at a time, and print the names for which it succeeded, in their order.

    A failure does not keep the other names from being tried.

    Args:
        names: each is acted on once, also when it is named twice.
        done: what the failures are not, for the message: ``released``.

    Raises:
        CalabashError: one or several failed; the reason and the hint are those of the first.
    """
    wanted = list(dict.fromkeys(names))
    if len(wanted) == 1:
        act(wanted[0])
        click.echo(wanted[0])
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - slow to import

    failed: list[CalabashError] = []
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(wanted))) as threads:
        for name, answer in [(name, threads.submit(act, name)) for name in wanted]:
            try:
                answer.result()
            except CalabashError as error:
                failed.append(error)
            else:
                click.echo(name)
    if failed:
        raise _summary(failed, of=len(wanted), done=done)


def _summary(failed: Sequence[CalabashError], *, of: int, done: str) -> CalabashError:
    """Return one error for all that failed; equal messages are named once."""
    first = failed[0]
    messages = list(dict.fromkeys(error.message for error in failed))
    if len(messages) == 1:
        return first
    more = f"; and {len(messages) - _NAMED} more" if len(messages) > _NAMED else ""
    text = "; ".join(messages[:_NAMED])
    return CalabashError(f"{len(failed)} of {of} are not {done}: {text}{more}", reason=first.reason, hint=first.hint)
