"""Routes of jobs."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints
from calabash.api import jobs as shapes
from calabash.api.route import Route

LIST_JOBS = Route(
    endpoint=endpoints.LIST_JOBS,
    summary="List jobs, newest first",
    note="only jobs of users whose allocations the requesting user may see",
    reply=shapes.JobList,
)
CREATE_JOB = Route(
    endpoint=endpoints.CREATE_JOB,
    summary="Create a job that runs a command on a slice, as the account of the requesting user",
    reply=shapes.JobDetail,
    body=shapes.JobOrder,
    note="the reply is sent at once, and the job waits in its queue like any request. 403 if the user has no account to"
    " which the pool can switch",
)
SHOW_JOB = Route(
    endpoint=endpoints.SHOW_JOB,
    summary="Get a job with the last 64 KiB of its output",
    reply=shapes.JobDetail,
)
STOP_JOB = Route(
    endpoint=endpoints.STOP_JOB,
    summary="Stop a job with SIGTERM, and with SIGKILL after five seconds; delete a job that has ended",
    reply=shapes.JobStopped,
)

JOBS: tuple[Route[Any], ...] = (
    LIST_JOBS,
    CREATE_JOB,
    SHOW_JOB,
    STOP_JOB,
)
