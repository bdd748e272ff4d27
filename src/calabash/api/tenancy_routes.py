"""Routes of tenants, projects, users, members, tokens and sessions."""

from __future__ import annotations

from typing import Any

from calabash.api import endpoints, replies
from calabash.api import tenancy as shapes
from calabash.api.route import Route

_VISIBLE = "only objects that the requesting user may see"

LIST_TENANTS = Route(
    endpoint=endpoints.LIST_TENANTS,
    summary="List tenants",
    reply=shapes.TenantList,
    note=_VISIBLE,
)
SHOW_TENANT = Route(
    endpoint=endpoints.SHOW_TENANT,
    summary="Get a tenant",
    reply=shapes.TenantView,
)
PUT_TENANT = Route(
    endpoint=endpoints.PUT_TENANT,
    summary="Create a tenant, or change the given settings",
    reply=replies.Named,
    body=shapes.TenantSettings,
    administrators=True,
)
DELETE_TENANT = Route(
    endpoint=endpoints.DELETE_TENANT,
    summary="Delete a tenant, its projects and memberships",
    reply=replies.Named,
    administrators=True,
    note="409 while it has requests",
)
LIST_PROJECTS = Route(
    endpoint=endpoints.LIST_PROJECTS,
    summary="List the projects of a tenant",
    reply=shapes.ProjectList,
)
SHOW_PROJECT = Route(
    endpoint=endpoints.SHOW_PROJECT,
    summary="Get a project",
    reply=shapes.ProjectView,
)
PUT_PROJECT = Route(
    endpoint=endpoints.PUT_PROJECT,
    summary="Create a project, or change the given settings",
    reply=replies.Named,
    body=shapes.ProjectSettings,
    note="administrators of the tenant",
)
DELETE_PROJECT = Route(
    endpoint=endpoints.DELETE_PROJECT,
    summary="Delete a project",
    reply=replies.Named,
    note="administrators of the tenant; 409 while it has requests",
)
LIST_USERS = Route(
    endpoint=endpoints.LIST_USERS,
    summary="List users and their roles",
    reply=shapes.UserList,
    note=_VISIBLE,
)
SHOW_USER = Route(
    endpoint=endpoints.SHOW_USER,
    summary="Get a user",
    reply=shapes.UserView,
)
PUT_USER = Route(
    endpoint=endpoints.PUT_USER,
    summary="Create a user, or change the given settings",
    reply=replies.Named,
    body=shapes.UserSettings,
    administrators=True,
)
DELETE_USER = Route(
    endpoint=endpoints.DELETE_USER,
    summary="Delete a user, its roles and tokens",
    reply=replies.Named,
    administrators=True,
)
ADD_MEMBER = Route(
    endpoint=endpoints.ADD_MEMBER,
    summary="Give a user a role",
    reply=replies.Named,
    body=shapes.MemberOrder,
    note="administrators of the tenant",
)
REMOVE_MEMBER = Route(
    endpoint=endpoints.REMOVE_MEMBER,
    summary="Remove a role of a user",
    reply=replies.Named,
    query=shapes.MemberPlace,
    note="administrators of the tenant",
)
LIST_TOKENS = Route(
    endpoint=endpoints.LIST_TOKENS,
    summary="List tokens, without their secrets",
    reply=shapes.TokenList,
    note="the tokens of the requesting user; administrators see all tokens",
)
CREATE_TOKEN = Route(
    endpoint=endpoints.CREATE_TOKEN,
    summary="Create a token; its secret is in this reply only",
    reply=shapes.IssuedTokenReply,
    body=shapes.TokenOrder,
)
DELETE_TOKEN = Route(
    endpoint=endpoints.DELETE_TOKEN,
    summary="Revoke a token with immediate effect",
    reply=replies.Named,
)
CREATE_SESSION = Route(
    endpoint=endpoints.CREATE_SESSION,
    summary="Create a session for a login code, or for an OIDC subject that the gateway has authenticated",
    reply=shapes.IssuedTokenReply,
    body=shapes.SessionOrder,
    note="a login code is valid once",
)
END_SESSION = Route(
    endpoint=endpoints.END_SESSION,
    summary="Revoke the token of this request",
    reply=replies.Named,
)
LIST_QUOTA = Route(
    endpoint=endpoints.LIST_QUOTA,
    summary="List guarantees and use of tenants and projects",
    reply=shapes.QuotaList,
    note=_VISIBLE,
)
SHOW_ME = Route(
    endpoint=endpoints.SHOW_ME,
    summary="Get the requesting user and its permissions",
    reply=shapes.Me,
)

TENANCY: tuple[Route[Any], ...] = (
    LIST_TENANTS,
    SHOW_TENANT,
    PUT_TENANT,
    DELETE_TENANT,
    LIST_PROJECTS,
    SHOW_PROJECT,
    PUT_PROJECT,
    DELETE_PROJECT,
    LIST_USERS,
    SHOW_USER,
    PUT_USER,
    DELETE_USER,
    ADD_MEMBER,
    REMOVE_MEMBER,
    LIST_TOKENS,
    CREATE_TOKEN,
    DELETE_TOKEN,
    CREATE_SESSION,
    END_SESSION,
    LIST_QUOTA,
    SHOW_ME,
)
