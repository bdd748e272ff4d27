"""Routes of jobs."""

from __future__ import annotations

from litestar import delete, get, post

from calabash.api import jobs as shapes
from calabash.api import requests
from calabash.platform.handlers.request import Asked, body_of, caller_of, work
from calabash.pool.jobs.service import Jobs


def _jobs(request: Asked) -> Jobs:
    found: Jobs = request.app.state.jobs
    return found


@get("/v1/jobs")
async def list_jobs(request: Asked) -> shapes.JobList:
    return shapes.JobList(items=await work(request, _jobs(request).listed, caller_of(request).principal))


@post("/v1/jobs", status_code=201)
async def start_job(request: Asked) -> shapes.JobDetail:
    caller = caller_of(request)
    order = requests.decode(await body_of(request), shapes.JobOrder)
    return await work(request, _jobs(request).start, order, caller)


@get("/v1/jobs/{job:str}")
async def show_job(request: Asked, job: str) -> shapes.JobDetail:
    return await work(request, _jobs(request).one, job, caller_of(request).principal)


@delete("/v1/jobs/{job:str}", status_code=200)
async def stop_job(request: Asked, job: str) -> shapes.JobStopped:
    return shapes.JobStopped(id=job, state=await work(request, _jobs(request).stop, job, caller_of(request)))


JOBS = (list_jobs, start_job, show_job, stop_job)
