"""Shapes of jobs: commands that the pool runs for users of its machine, and what they said."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.requests import WAIT_S_MAX, AllocationRequest

COMMAND_WORDS_MAX = 256
PATH_CHARACTERS_MAX = 1024


class JobState(StrEnum):
    """Where a job is. The first two are those of one that is not over."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"  # its program has ended by itself, with ``exit_code``
    STOPPED = "stopped"  # somebody has stopped it
    FAILED = "failed"  # its program was never started; ``message`` says why
    LOST = "lost"  # what kept it is gone without a word


class JobOrder(AllocationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A command is to run on a slice, as the account of whoever asks, without a shell."""

    command: Annotated[
        list[Annotated[str, Meta(max_length=8192)]],
        Meta(min_length=1, max_length=COMMAND_WORDS_MAX, description="the program and its arguments, word by word"),
    ]
    directory: Annotated[
        str,
        Meta(
            max_length=PATH_CHARACTERS_MAX,
            pattern=r"^(/[^\x00]*)?\Z",
            description="where it begins, from the root; empty: the account's home",
        ),
    ] = ""
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="how long to wait for room")] = WAIT_S_MAX


class JobView(Reply, kw_only=True, frozen=True):
    """A job. ``allocation`` is its slice, or the request that waits for one; empty before it has asked. An ``exit_code`` above
    128 is a signal, as shells have it. ``message`` and ``hint``: why it failed or was lost."""

    id: str
    state: JobState
    user: str
    tenant: str
    queue: str
    command: list[str]
    directory: str
    allocation: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    reason: str
    message: str
    hint: str


class JobList(Reply, kw_only=True, frozen=True):
    """Newest first."""

    items: list[JobView]


class JobDetail(Reply, kw_only=True, frozen=True):
    """A job with the end of what it has said on standard output and standard error, and how many bytes came before that."""

    job: JobView
    output: str
    output_bytes_before: int


class JobStopped(Reply, kw_only=True, frozen=True):
    """``stopping`` while it is being ended, ``forgotten`` when it was over."""

    id: str
    state: str
