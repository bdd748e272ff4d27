"""Routes of tenants, projects, users, members, tokens and sessions."""

from __future__ import annotations

from calabash.api import replies
from calabash.api import tenancy as shapes
from calabash.api.route import Route

_VISIBLE = "only objects that the requesting user may see"

TENANCY = (
    Route(method="GET", path="/v1/tenants", summary="List tenants", reply=shapes.TenantList, note=_VISIBLE),
    Route(method="GET", path="/v1/tenants/{tenant}", summary="Get a tenant", reply=shapes.TenantView),
    Route(
        method="PUT",
        path="/v1/tenants/{tenant}",
        summary="Create a tenant, or change the given settings",
        reply=replies.Named,
        body=shapes.TenantSettings,
        administrators=True,
    ),
    Route(
        method="DELETE",
        path="/v1/tenants/{tenant}",
        summary="Delete a tenant, its projects and memberships",
        reply=replies.Named,
        administrators=True,
        note="409 while it has requests",
    ),
    Route(
        method="GET",
        path="/v1/tenants/{tenant}/projects",
        summary="List the projects of a tenant",
        reply=shapes.ProjectList,
    ),
    Route(
        method="GET", path="/v1/tenants/{tenant}/projects/{project}", summary="Get a project", reply=shapes.ProjectView
    ),
    Route(
        method="PUT",
        path="/v1/tenants/{tenant}/projects/{project}",
        summary="Create a project, or change the given settings",
        reply=replies.Named,
        body=shapes.ProjectSettings,
        note="administrators of the tenant",
    ),
    Route(
        method="DELETE",
        path="/v1/tenants/{tenant}/projects/{project}",
        summary="Delete a project",
        reply=replies.Named,
        note="administrators of the tenant; 409 while it has requests",
    ),
    Route(method="GET", path="/v1/users", summary="List users and their roles", reply=shapes.UserList, note=_VISIBLE),
    Route(method="GET", path="/v1/users/{user}", summary="Get a user", reply=shapes.UserView),
    Route(
        method="PUT",
        path="/v1/users/{user}",
        summary="Create a user, or change the given settings",
        reply=replies.Named,
        body=shapes.UserSettings,
        administrators=True,
    ),
    Route(
        method="DELETE",
        path="/v1/users/{user}",
        summary="Delete a user, its roles and tokens",
        reply=replies.Named,
        administrators=True,
    ),
    Route(
        method="PUT",
        path="/v1/members",
        summary="Give a user a role",
        reply=replies.Named,
        body=shapes.MemberOrder,
        note="administrators of the tenant",
    ),
    Route(
        method="DELETE",
        path="/v1/members",
        summary="Remove a role of a user",
        reply=replies.Named,
        query=shapes.MemberPlace,
        note="administrators of the tenant",
    ),
    Route(
        method="GET",
        path="/v1/tokens",
        summary="List tokens, without their secrets",
        reply=shapes.TokenList,
        note="the tokens of the requesting user; administrators see all tokens",
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        summary="Create a token; its secret is in this reply only",
        reply=shapes.IssuedTokenReply,
        body=shapes.TokenOrder,
        status=201,
    ),
    Route(method="DELETE", path="/v1/tokens/{id}", summary="Revoke a token with immediate effect", reply=replies.Named),
    Route(
        method="POST",
        path="/v1/sessions",
        summary="Create a session for a login code, or for an OIDC subject that the gateway has authenticated",
        reply=shapes.IssuedTokenReply,
        body=shapes.SessionOrder,
        status=201,
        note="a login code is valid once",
    ),
    Route(
        method="DELETE", path="/v1/sessions/current", summary="Revoke the token of this request", reply=replies.Named
    ),
    Route(
        method="GET",
        path="/v1/quota",
        summary="List guarantees and use of tenants and projects",
        reply=shapes.QuotaList,
        note=_VISIBLE,
    ),
    Route(method="GET", path="/v1/me", summary="Get the requesting user and its permissions", reply=shapes.Me),
)
