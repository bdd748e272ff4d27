"""Move a waiting request to another queue of its tenant, or to a queue that an administrator has created."""

from __future__ import annotations

from calabash.binder.local.requests import WaitingRequest
from calabash.model import access
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, UserName
from calabash.model.request import AllocationId
from calabash.model.tenancy import project_of
from calabash.platform.access.caller import Caller
from calabash.platform.access.permission import not_found
from calabash.platform.tenancy.queues import queue_of
from calabash.pool.pool import Pool


def move(pool: Pool, allocation: AllocationId, queue: str, caller: Caller) -> str:
    """Move a waiting request and its gang to a queue; return the full name of the queue.

    The request keeps its tenant and its age, which determines its position.

    Args:
        queue: full name of the queue. ``default`` or the name of the tenant mean the queue of the caller's only
            project, else that of the default project.

    Raises NOT_FOUND, NOT_PERMITTED if the caller may not move the request or use the queue, CONFLICT if it does not wait.
    """
    waiting = pool.binder.find(allocation)
    if waiting is None:
        if pool.agent.record(allocation) is not None and pool.visibility(caller.principal).allocation(allocation):
            raise CalabashError(
                f"{allocation} is placed already", reason=Reason.CONFLICT, hint="only waiting requests can be moved"
            )
        raise not_found(allocation)
    asker, request = waiting.requester, waiting.request
    pool.permission.require_owner(
        caller.principal, allocation, uid=asker.uid, user=asker.user, tenant=request.tenant, queue=request.queue
    )
    wanted = _permitted(pool, waiting, queue, caller)
    if wanted == request.queue:
        return wanted
    before = request.queue
    for moved in pool.binder.move(waiting, wanted):
        message = Message(
            "{request} was moved from queue {before} to {queue} by {user}",
            request=moved.id,
            before=before,
            queue=wanted,
            user=UserName(caller.principal.user),
        )
        pool.agent.event("moved", allocation=moved.id, message=message)
    pool.binder.room_may_have_appeared()
    return wanted


def _permitted(pool: Pool, waiting: WaitingRequest, queue: str, caller: Caller) -> str:
    """Return the full name of the queue after checking that the caller may move the request there.

    Raises NOT_FOUND if the queue does not exist or the caller may not see it, NOT_PERMITTED.
    """
    who, tenant = caller.principal, waiting.request.tenant
    people, explicit = pool.tenancy.people(), pool.queues.explicit()
    other = queue.partition("/")[0]
    if other in people.tenants and other != tenant and queue not in explicit:
        if not access.is_allowed(who, Action.SEE, tenant=other):
            pool.queues.require_explicit(queue)  # hides the queues of tenants that the caller may not see
        raise CalabashError(
            f"queue {queue} is on the account of tenant {other}, {waiting.id} on that of {tenant}",
            reason=Reason.NOT_PERMITTED,
            hint=f"withdraw it, and ask again with --tenant {other}",
        )
    found, _ = queue_of(people, explicit, who, tenant, queue=queue, project="")
    project = project_of(tenant, found) if tenant in people.tenants and found not in explicit else ""
    if access.is_allowed(who, Action.OPERATE):
        if not project:
            pool.queues.require_explicit(found)
    elif project:
        pool.permission.require(
            who, Action.RUN, f"use project {project} of tenant {tenant}", tenant=tenant, project=project
        )
    else:
        record = pool.queues.queue(found)
        pool.permission.require_queue(who, found, record.users, record.groups)
        pool.queues.require_explicit(found)
        if not pool.permission.owns(who, uid=waiting.requester.uid, user=waiting.requester.user):
            pool.permission.require(
                who, Action.OPERATE, f"put a request of {waiting.requester.user} into queue {found}"
            )
    return found
