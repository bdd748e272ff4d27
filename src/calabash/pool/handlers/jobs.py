"""Routes of jobs."""

from __future__ import annotations

from calabash.api import endpoints, requests
from calabash.api import jobs as shapes
from calabash.platform.handlers.request import Asked, body_of, caller_of, work
from calabash.pool.jobs.service import Jobs
from calabash.transport.web.routing import handles


def _jobs(request: Asked) -> Jobs:
    found: Jobs = request.app.state.jobs
    return found


@handles(endpoints.LIST_JOBS)
async def list_jobs(request: Asked) -> shapes.JobList:
    return shapes.JobList(items=await work(request, _jobs(request).listed, caller_of(request).principal))


@handles(endpoints.CREATE_JOB)
async def start_job(request: Asked) -> shapes.JobDetail:
    caller = caller_of(request)
    order = requests.decode(await body_of(request), shapes.JobOrder)
    return await work(request, _jobs(request).start, order, caller)


@handles(endpoints.SHOW_JOB)
async def show_job(request: Asked, job: str) -> shapes.JobDetail:
    return await work(request, _jobs(request).one, job, caller_of(request).principal)


@handles(endpoints.STOP_JOB)
async def stop_job(request: Asked, job: str) -> shapes.JobStopped:
    return shapes.JobStopped(id=job, state=await work(request, _jobs(request).stop, job, caller_of(request)))


JOBS = (list_jobs, start_job, show_job, stop_job)
