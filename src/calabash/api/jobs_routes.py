"""Routes of jobs."""

from __future__ import annotations

from calabash.api import jobs as shapes
from calabash.api.route import Route

JOBS = (
    Route(
        method="GET",
        path="/v1/jobs",
        summary="commands that the pool runs for users, newest first, of those whose allocations are seen",
        reply=shapes.JobList,
    ),
    Route(
        method="POST",
        path="/v1/jobs",
        summary="runs a command on a slice, as the account of whoever asks",
        reply=shapes.JobDetail,
        body=shapes.JobOrder,
        status=201,
        note="answered at once; it waits in its queue like any request. 403 without an account that the pool may switch to",
    ),
    Route(
        method="GET",
        path="/v1/jobs/{id}",
        summary="one job with the last 64 KiB that it said",
        reply=shapes.JobDetail,
    ),
    Route(
        method="DELETE",
        path="/v1/jobs/{id}",
        summary="stops a job with SIGTERM, and SIGKILL five seconds later; one that is over is forgotten",
        reply=shapes.JobStopped,
    ),
)
