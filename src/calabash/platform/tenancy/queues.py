"""Derive queues from tenants and projects, and apply the limits of a tenant to its requests. Pure functions.

The queue of a tenant has the guarantee and the limit of the tenant. It has a child queue for each project, and a child
queue ``default`` for requests without a project. The guarantee of the default queue is that of the tenant less those of
the projects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from calabash.model import access
from calabash.model.allocation import QueueRecord
from calabash.model.device import Device
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, GpuRequest
from calabash.model.tenancy import DEFAULT_PROJECT, Principal, Tenant, project_of, project_queue
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.sharing.registry import mode_for

SHOWN_MAX = 8


def tenant_queues(people: TenancyDirectory, explicit: Collection[str]) -> dict[str, QueueRecord]:
    """Return the queues of all tenants by name.

    An administrator may have created a queue with the name of a tenant. Such a tenant has only that queue.

    Args:
        people: the directory.
        explicit: names of the queues that an administrator has created.
    """
    found: dict[str, QueueRecord] = {}
    for tenant in people.tenants.values():
        if tenant.name in explicit:
            continue
        found[tenant.name] = QueueRecord(
            name=tenant.name, deserved=tenant.guarantee, limit=tenant.limit, weight=tenant.weight
        )
        projects = people.projects_of(tenant.name)
        left = max(0.0, tenant.guarantee - sum(p.guarantee for p in projects))
        first = project_queue(tenant.name)
        found[first] = QueueRecord(name=first, parent=tenant.name, deserved=left)
        for p in projects:
            found[p.queue] = QueueRecord(
                name=p.queue, parent=tenant.name, deserved=p.guarantee, limit=p.limit, weight=p.weight
            )
    return found


def queue_of(
    people: TenancyDirectory, explicit: Collection[str], who: Principal, tenant: str, *, queue: str, project: str
) -> tuple[str, str]:
    """Return the queue and the project of a request for a tenant; project "" for none.

    Raises NOT_FOUND for an unknown project. If the request names a queue that belongs to no tenant, the caller must
    check that the queue exists and that the principal may use it.
    """
    if tenant not in people.tenants:
        if project:
            raise CalabashError(f"{tenant} has no projects", reason=Reason.NOT_FOUND, hint="leave the project out")
        return queue or DEFAULT_QUEUE, ""
    if tenant in explicit and queue in {"", DEFAULT_QUEUE, tenant} and not project:
        return tenant, ""
    named = project or project_of(tenant, queue) or _only_project(who, tenant)
    if not project and queue not in {"", DEFAULT_QUEUE, tenant} and not project_of(tenant, queue):
        return queue, ""
    named = named or DEFAULT_PROJECT
    if named != DEFAULT_PROJECT and (tenant, named) not in people.projects:
        there = ", ".join(sorted(p.name for p in people.projects_of(tenant))) or DEFAULT_PROJECT
        raise CalabashError(
            f"there is no project {named} of tenant {tenant}", reason=Reason.NOT_FOUND, hint=f"one of: {there}"
        )
    return project_queue(tenant, named), named


def apply_tenant_limits(request: GpuRequest, tenant: Tenant, devices: Sequence[Device]) -> GpuRequest:
    """Return the request with the tenant's run time limit and permitted models. Raises NOT_PERMITTED if it exceeds a limit."""
    least, most = tenant.priorities
    if not least <= request.priority <= most:
        raise _past(tenant, f"may request priority {least} to {most}, not {request.priority}", "leave --priority out")
    mode = request.mode or mode_for(request).name
    if tenant.modes and mode not in tenant.modes:
        raise _past(tenant, f"may request mode {', '.join(tenant.modes)}, not {mode}", f"use --mode {tenant.modes[0]}")
    if tenant.run_s_max:
        if request.run_time_s > tenant.run_s_max:
            raise _past(
                tenant,
                f"runs {tenant.run_s_max:g}s at most, not {request.run_time_s:g}s",
                "split the work, or save its state before the end and request again",
            )
        request = replace(request, run_time_s=request.run_time_s or tenant.run_s_max)
    if tenant.models:
        request = _only_models(request, tenant, devices)
    return request


def _only_models(request: GpuRequest, tenant: Tenant, devices: Sequence[Device]) -> GpuRequest:
    wanted = [m.casefold() for m in request.selector.models]
    others = [d for d in devices if not any(m.casefold() in d.model.casefold() for m in tenant.models)]
    out = {d.uuid for d in others}
    left = [d for d in devices if d.uuid not in out and (not wanted or any(m in d.model.casefold() for m in wanted))]
    if not left:
        asked = ", ".join(request.selector.models[:SHOWN_MAX]) or "any"
        raise _past(
            tenant,
            f"may use models {', '.join(tenant.models[:SHOWN_MAX])}, asked {asked}",
            "name a model that it may use",
        )
    excluded = tuple(dict.fromkeys((*request.selector.uuids_excluded, *(d.uuid for d in others))))
    return replace(request, selector=replace(request.selector, uuids_excluded=excluded))


def _only_project(who: Principal, tenant: str) -> str:
    """Return the only project of the tenant in which the principal has a role.

    Returns "" if the principal has roles in several projects or none, or may use the whole tenant.
    """
    if access.is_allowed(who, access.Action.RUN, tenant=tenant):
        return ""
    found = {role.project for role in who.roles if role.tenant == tenant and role.project}
    return found.pop() if len(found) == 1 else ""


def _past(tenant: Tenant, what: str, hint: str) -> CalabashError:
    return CalabashError(f"tenant {tenant.name} {what}", reason=Reason.NOT_PERMITTED, hint=hint)
