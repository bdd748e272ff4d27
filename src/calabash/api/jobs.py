"""Message types of jobs: commands that the pool runs for users of its machine, and their output."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from calabash.api.replies import Reply
from calabash.api.requests import WAIT_S_MAX, AllocationRequest

COMMAND_WORDS_MAX = 256
PATH_CHARACTERS_MAX = 1024


class JobState(StrEnum):
    """States of a job. A job in state WAITING or RUNNING has not ended."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"  # the program has exited, with ``exit_code``
    STOPPED = "stopped"  # a user has stopped it
    FAILED = "failed"  # the program was not started; ``message`` has the error
    LOST = "lost"  # the supervising process ended without reporting the exit code


class JobOrder(AllocationRequest, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Request to run a command on a slice, without a shell, as the account of the requesting user."""

    command: Annotated[
        list[Annotated[str, Meta(max_length=8192)]],
        Meta(min_length=1, max_length=COMMAND_WORDS_MAX, description="the program and its arguments"),
    ]
    directory: Annotated[
        str,
        Meta(
            max_length=PATH_CHARACTERS_MAX,
            pattern=r"^(/[^\x00]*)?\Z",
            description="absolute path of the working directory; empty: home directory of the account",
        ),
    ] = ""
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="seconds to wait for free devices")] = WAIT_S_MAX


class JobView(Reply, kw_only=True, frozen=True):
    """Job. ``allocation`` is the ID of its allocation or waiting request; empty before the request is made.

    An ``exit_code`` above 128 is 128 plus the number of a signal. ``message`` and ``hint`` are the error of a failed or lost
    job.
    """

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
    """Jobs, newest first."""

    items: list[JobView]


class JobDetail(Reply, kw_only=True, frozen=True):
    """Job with the end of its standard output and standard error, and the number of bytes before that."""

    job: JobView
    output: str
    output_bytes_before: int


class JobStopped(Reply, kw_only=True, frozen=True):
    """Result of stopping a job: state ``stopping``, or ``forgotten`` for a job that had ended and was deleted."""

    id: str
    state: str
