"""Forms of jobs and reservations."""

from __future__ import annotations

import shlex
from typing import Any

from calabash.api import endpoints
from calabash.gateway.web.forms import DURATION, MEMORY, Form, text, whole
from calabash.model.errors import CalabashError

_AMOUNTS = {"gpus": whole, "memory_mib": MEMORY, "cores": whole, "mode": text, "policy": text, "priority": whole}
_ACCOUNT = {"tenant": text, "queue": text}


def command_words(value: str) -> list[str]:
    """Split a command line into words as a shell does, with quotation marks and backslashes but without expansions.

    Raises:
        CalabashError: if a quotation mark is not closed.
    """
    try:
        return shlex.split(value)
    except ValueError as error:
        raise CalabashError(f"the command line cannot be parsed: {error}", hint="close the quotation marks") from None


def _reservation(read: dict[str, Any]) -> dict[str, Any]:
    """Return the request body for a reservation: a standing allocation that has the note of the form as its command."""
    note = read.pop("note", "")
    return {**read, "standing": True, "command": ["reservation", *([note] if note else [])]}


JOBS = (
    Form(
        name="job",
        needs="run",
        endpoint=endpoints.CREATE_JOB,
        fields={
            "command": command_words,
            "directory": text,
            **_AMOUNTS,
            **_ACCOUNT,
            "run_time_s": DURATION,
            "wait_s": DURATION,
        },
        back="/jobs/{id}",
        said="Job {id} started.",
    ),
    Form(
        name="job-stop",
        needs="stop",
        endpoint=endpoints.STOP_JOB,
        at=("id",),
        back="/jobs",
        said="Job {id}: {state}.",
    ),
    Form(
        name="reserve",
        needs="operate",
        endpoint=endpoints.ALLOCATE,
        fields={**_AMOUNTS, **_ACCOUNT, "keep_s": DURATION, "note": text},
        shaped=_reservation,
        back="/workloads/{id}",
        said="Reservation {id} created.",
    ),
    Form(
        name="keep",
        needs="stop",
        endpoint=endpoints.RENEW_ALLOCATION,
        at=("id",),
        back="/workloads/{id}",
        said="Reservation {id} extended.",
    ),
)
