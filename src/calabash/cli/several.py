"""Send one request for each of several objects, up to 64 concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from calabash.model.errors import CalabashError

AT_ONCE = 64  # requests in flight
_NAMED = 5  # failures that the message names


def for_each(names: Sequence[str], act: Callable[[str], object], *, done: str) -> None:
    """Call ``act`` for each name, up to ``AT_ONCE`` at a time, and print the names for which it succeeded, in order.

    A failure does not prevent the calls for the other names.

    Args:
        names: each is used once, also if it is given twice.
        act: the request for one name.
        done: participle for the message of failures, such as ``released``.

    Raises:
        CalabashError: if a call failed; reason and hint are those of the first failure.
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
    """Return one error for all failures among ``of`` requests; each distinct message occurs once."""
    first = failed[0]
    messages = list(dict.fromkeys(error.message for error in failed))
    if len(messages) == 1:
        return first
    more = f"; and {len(messages) - _NAMED} more" if len(messages) > _NAMED else ""
    text = "; ".join(messages[:_NAMED])
    return CalabashError(f"{len(failed)} of {of} are not {done}: {text}{more}", reason=first.reason, hint=first.hint)
