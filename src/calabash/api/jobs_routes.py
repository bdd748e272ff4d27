"""Routes of jobs."""

from __future__ import annotations

from calabash.api import jobs as shapes
from calabash.api.route import Route

JOBS = (
    Route(
        method="GET",
        path="/v1/jobs",
        summary="List jobs, newest first",
        note="only jobs of users whose allocations the requesting user may see",
        reply=shapes.JobList,
    ),
    Route(
        method="POST",
        path="/v1/jobs",
        summary="Create a job that runs a command on a slice, as the account of the requesting user",
        reply=shapes.JobDetail,
        body=shapes.JobOrder,
        status=201,
        note="the reply is sent at once, and the job waits in its queue like any request. 403 if the user has no account to"
        " which the pool can switch",
    ),
    Route(
        method="GET",
        path="/v1/jobs/{id}",
        summary="Get a job with the last 64 KiB of its output",
        reply=shapes.JobDetail,
    ),
    Route(
        method="DELETE",
        path="/v1/jobs/{id}",
        summary="Stop a job with SIGTERM, and with SIGKILL after five seconds; delete a job that has ended",
        reply=shapes.JobStopped,
    ),
)
