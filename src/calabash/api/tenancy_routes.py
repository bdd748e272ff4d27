"""Routes of tenants, projects, users, members, tokens and sessions."""

from __future__ import annotations

from calabash.api import replies
from calabash.api import tenancy as shapes
from calabash.api.route import Route

_SEEN = "only what whoever asks may see"

TENANCY = (
    Route(method="GET", path="/v1/tenants", summary="tenants", reply=shapes.TenantList, note=_SEEN),
    Route(method="GET", path="/v1/tenants/{tenant}", summary="a tenant", reply=shapes.TenantView),
    Route(
        method="PUT",
        path="/v1/tenants/{tenant}",
        summary="creates a tenant, or changes what is said",
        reply=replies.Named,
        body=shapes.TenantSettings,
        administrators=True,
    ),
    Route(
        method="DELETE",
        path="/v1/tenants/{tenant}",
        summary="deletes a tenant, its projects and memberships",
        reply=replies.Named,
        administrators=True,
        note="409 while it has requests",
    ),
    Route(
        method="GET",
        path="/v1/tenants/{tenant}/projects",
        summary="projects of a tenant",
        reply=shapes.ProjectList,
    ),
    Route(method="GET", path="/v1/tenants/{tenant}/projects/{project}", summary="a project", reply=shapes.ProjectView),
    Route(
        method="PUT",
        path="/v1/tenants/{tenant}/projects/{project}",
        summary="creates a project, or changes what is said",
        reply=replies.Named,
        body=shapes.ProjectSettings,
        note="administrators of the tenant",
    ),
    Route(
        method="DELETE",
        path="/v1/tenants/{tenant}/projects/{project}",
        summary="deletes a project",
        reply=replies.Named,
        note="administrators of the tenant; 409 while it has requests",
    ),
    Route(method="GET", path="/v1/users", summary="users and their roles", reply=shapes.UserList, note=_SEEN),
    Route(method="GET", path="/v1/users/{user}", summary="a user", reply=shapes.UserView),
    Route(
        method="PUT",
        path="/v1/users/{user}",
        summary="creates a user, or changes what is said",
        reply=replies.Named,
        body=shapes.UserSettings,
        administrators=True,
    ),
    Route(
        method="DELETE",
        path="/v1/users/{user}",
        summary="deletes a user, its roles and tokens",
        reply=replies.Named,
        administrators=True,
    ),
    Route(
        method="PUT",
        path="/v1/members",
        summary="gives a user a role",
        reply=replies.Named,
        body=shapes.MemberOrder,
        note="administrators of the tenant",
    ),
    Route(
        method="DELETE",
        path="/v1/members",
        summary="takes a role from a user",
        reply=replies.Named,
        query=shapes.MemberPlace,
        note="administrators of the tenant",
    ),
    Route(
        method="GET",
        path="/v1/tokens",
        summary="tokens, without their secrets",
        reply=shapes.TokenList,
        note="one's own; administrators see all",
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        summary="makes a token; its secret is in this reply only",
        reply=shapes.IssuedTokenReply,
        body=shapes.TokenOrder,
        status=201,
    ),
    Route(method="DELETE", path="/v1/tokens/{id}", summary="revokes a token at once", reply=replies.Named),
    Route(
        method="POST",
        path="/v1/sessions",
        summary="exchanges a login code, or the gateway's word for an OIDC subject, for the token of a session",
        reply=shapes.IssuedTokenReply,
        body=shapes.SessionOrder,
        status=201,
        note="a code is good once",
    ),
    Route(
        method="DELETE", path="/v1/sessions/current", summary="revokes the token that it came with", reply=replies.Named
    ),
    Route(
        method="GET",
        path="/v1/quota",
        summary="what tenants and their projects are promised and have",
        reply=shapes.QuotaList,
        note=_SEEN,
    ),
    Route(method="GET", path="/v1/me", summary="who asks, and what it may", reply=shapes.Me),
)
