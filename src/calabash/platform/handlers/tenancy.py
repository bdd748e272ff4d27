"""Routes of tenants, projects, users, members, tokens and sessions."""

from __future__ import annotations

from calabash.api import endpoints, requests
from calabash.api import tenancy as shapes
from calabash.api.replies import Named
from calabash.model import access
from calabash.model.access import Action
from calabash.model.money import Money
from calabash.platform.access.tokens import IssuedSecret
from calabash.platform.handlers.request import (
    Asked,
    body_of,
    caller_of,
    guarantee_warnings_of,
    operations_of,
    visibility_of,
    work,
)
from calabash.platform.tenancy import views
from calabash.platform.tenancy.store import missing
from calabash.transport.web.routing import handles


@handles(endpoints.LIST_TENANTS)
async def list_tenants(request: Asked) -> shapes.TenantList:
    who, people = caller_of(request).principal, operations_of(request).tenancy.people()
    return shapes.TenantList(items=[views.shown_tenant(people, t) for t in views.tenants(people, who)])


@handles(endpoints.SHOW_TENANT)
async def show_tenant(request: Asked, tenant: str) -> shapes.TenantView:
    who, people = caller_of(request).principal, operations_of(request).tenancy.people()
    return views.shown_tenant(people, views.tenant(people, who, tenant))


@handles(endpoints.PUT_TENANT)
async def put_tenant(request: Asked, tenant: str) -> Named:
    who, tenant = caller_of(request).principal, requests.checked_name(tenant, what="tenant")
    body = requests.decode(await body_of(request), shapes.TenantSettings)
    await work(request, operations_of(request).changes.put_tenant, who, tenant, body)
    return Named(name=tenant, warnings=await guarantee_warnings_of(request, body.guarantee))


@handles(endpoints.DELETE_TENANT)
async def delete_tenant(request: Asked, tenant: str) -> Named:
    who = caller_of(request).principal
    await work(request, operations_of(request).pool.settle)  # allocations that have ended must not block the deletion
    await work(request, operations_of(request).changes.delete_tenant, who, tenant)
    return Named(name=tenant)


@handles(endpoints.LIST_PROJECTS)
async def list_projects(request: Asked, tenant: str) -> shapes.ProjectList:
    who, people = caller_of(request).principal, operations_of(request).tenancy.people()
    found = people.projects_of(views.tenant(people, who, tenant).name)
    return shapes.ProjectList(items=[views.shown_project(p) for p in sorted(found, key=lambda p: p.name)])


@handles(endpoints.SHOW_PROJECT)
async def show_project(request: Asked, tenant: str, project: str) -> shapes.ProjectView:
    who, people = caller_of(request).principal, operations_of(request).tenancy.people()
    found = people.projects.get((views.tenant(people, who, tenant).name, project))
    if found is None:
        raise missing("project", f"{tenant}/{project}")
    return views.shown_project(found)


@handles(endpoints.PUT_PROJECT)
async def put_project(request: Asked, tenant: str, project: str) -> Named:
    who, project = caller_of(request).principal, requests.checked_part(project, what="project")
    body = requests.decode(await body_of(request), shapes.ProjectSettings)
    await work(request, operations_of(request).changes.put_project, who, tenant, project, body)
    return Named(name=f"{tenant}/{project}")


@handles(endpoints.DELETE_PROJECT)
async def delete_project(request: Asked, tenant: str, project: str) -> Named:
    who = caller_of(request).principal
    await work(request, operations_of(request).pool.settle)
    await work(request, operations_of(request).changes.delete_project, who, tenant, project)
    return Named(name=f"{tenant}/{project}")


@handles(endpoints.LIST_USERS)
async def list_users(request: Asked) -> shapes.UserList:
    who, people = caller_of(request).principal, operations_of(request).tenancy.people()
    return shapes.UserList(items=views.users(people, who))


@handles(endpoints.SHOW_USER)
async def show_user(request: Asked, user: str) -> shapes.UserView:
    who, people = caller_of(request).principal, operations_of(request).tenancy.people()
    found = views.user(people, who, user)
    if found is None:
        raise missing("user", user[:128])
    return found


@handles(endpoints.PUT_USER)
async def put_user(request: Asked, user: str) -> Named:
    who, user = caller_of(request).principal, requests.checked_login(user)
    body = requests.decode(await body_of(request), shapes.UserSettings)
    await work(request, operations_of(request).changes.put_user, who, user, body)
    return Named(name=user)


@handles(endpoints.DELETE_USER)
async def delete_user(request: Asked, user: str) -> Named:
    who = caller_of(request).principal
    await work(request, operations_of(request).changes.delete_user, who, user)
    return Named(name=user)


@handles(endpoints.ADD_MEMBER)
async def put_member(request: Asked) -> Named:
    who = caller_of(request).principal
    body = requests.decode(await body_of(request), shapes.MemberOrder)
    await work(request, operations_of(request).changes.put_member, who, body)
    return Named(name=body.user)


@handles(endpoints.REMOVE_MEMBER)
async def delete_member(request: Asked) -> Named:
    who = caller_of(request).principal
    where = requests.decode_query(request.query, shapes.MemberPlace)
    await work(request, operations_of(request).changes.delete_member, who, where)
    return Named(name=where.user)


@handles(endpoints.LIST_TOKENS)
async def list_tokens(request: Asked) -> shapes.TokenList:
    who, operations = caller_of(request).principal, operations_of(request)
    everybody = access.is_allowed(who, Action.MANAGE_USERS)
    found = [t for t in operations.tokens.everybody() if everybody or t.user == who.user]
    return shapes.TokenList(items=[views.shown_token(t, operations.tokens.now_s()) for t in found])


@handles(endpoints.CREATE_TOKEN)
async def create_token(request: Asked) -> shapes.IssuedTokenReply:
    who = caller_of(request).principal
    body = requests.decode(await body_of(request), shapes.TokenOrder)
    return _issued(await work(request, operations_of(request).changes.issue, who, body))


@handles(endpoints.DELETE_TOKEN)
async def revoke_token(request: Asked, token: str) -> Named:
    who = caller_of(request).principal
    await work(request, operations_of(request).changes.revoke, who, token)
    return Named(name=token)


@handles(endpoints.CREATE_SESSION)
async def begin_session(request: Asked) -> shapes.IssuedTokenReply:
    who = caller_of(request).principal
    body = requests.decode(await body_of(request), shapes.SessionOrder)
    return _issued(await work(request, operations_of(request).changes.session, who, body))


@handles(endpoints.END_SESSION)
async def end_session(request: Asked) -> Named:
    who = caller_of(request).principal
    await work(request, operations_of(request).changes.revoke, who, who.token)
    return Named(name=who.token)


@handles(endpoints.LIST_QUOTA)
async def list_quota(request: Asked) -> shapes.QuotaList:
    operations, visibility = operations_of(request), visibility_of(request)
    queues = await work(request, operations.pool.queues, visibility)

    def spent(tenant: str) -> Money | None:
        found = operations.billing.spent(tenant)
        return found.money if found is not None else None

    return shapes.QuotaList(items=views.quota(operations.tenancy.people(), visibility.who, queues, spent))


@handles(endpoints.SHOW_ME)
async def me(request: Asked) -> shapes.Me:
    return views.me(caller_of(request).principal)


def _issued(issued: IssuedSecret) -> shapes.IssuedTokenReply:
    record = issued.record
    return shapes.IssuedTokenReply(
        id=record.id,
        user=record.user,
        kind=record.kind,
        scopes=[str(scope) for scope in record.scopes],
        expires_at=record.expires_at,
        secret=issued.secret,
    )


TENANCY = (
    list_tenants,
    show_tenant,
    put_tenant,
    delete_tenant,
    list_projects,
    show_project,
    put_project,
    delete_project,
    list_users,
    show_user,
    put_user,
    delete_user,
    put_member,
    delete_member,
    list_tokens,
    create_token,
    revoke_token,
    begin_session,
    end_session,
    list_quota,
    me,
)
