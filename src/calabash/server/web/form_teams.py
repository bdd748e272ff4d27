"""Forms of teams: tenants, projects, users, members, tokens."""

from __future__ import annotations

from calabash.server.web.forms import (
    DURATION,
    Form,
    decimal,
    decimal_or_none,
    text,
    text_or_none,
    whole,
    words,
)

_AMOUNTS = {"guarantee": decimal, "limit": decimal_or_none, "weight": decimal}

TEAMS = (
    Form(
        name="tenant",
        needs="manage-tenants",
        method="PUT",
        path="/v1/tenants/{name}",
        fields={
            **_AMOUNTS,
            "budget": text_or_none,
            "slices_per_user": whole,
            "run_s_max": DURATION,
            "priority_min": whole,
            "priority_max": whole,
            "modes": words,
        },
        back="/tenants/{name}",
        said="Tenant {name} is set.",
    ),
    Form(
        name="tenant-delete",
        needs="manage-tenants",
        method="DELETE",
        path="/v1/tenants/{name}",
        back="/tenants",
        said="Tenant {name} is gone.",
    ),
    Form(
        name="project",
        needs="manage-projects",
        method="PUT",
        path="/v1/tenants/{tenant}/projects/{name}",
        fields=_AMOUNTS,
        back="/tenants/{tenant}",
        said="Project {name} is set.",
    ),
    Form(
        name="project-delete",
        needs="manage-projects",
        method="DELETE",
        path="/v1/tenants/{tenant}/projects/{name}",
        back="/tenants/{tenant}",
        said="Project {name} is gone.",
    ),
    Form(
        name="member",
        needs="manage-members",
        method="PUT",
        path="/v1/members",
        fields={"user": text, "role": text, "tenant": text, "project": text},
        back="/tenants/{place}",
        said="{user} is {role} now.",
    ),
    Form(
        name="member-remove",
        needs="manage-members",
        method="DELETE",
        path="/v1/members",
        query={"user": text, "tenant": text, "project": text},
        back="/tenants/{place}",
        said="{user} is no member any more.",
    ),
    Form(
        name="user",
        needs="manage-users",
        method="PUT",
        path="/v1/users/{name}",
        fields={"login": text, "email": text, "subject": text},
        back="/users",
        said="User {name} is set.",
    ),
    Form(
        name="user-delete",
        needs="manage-users",
        method="DELETE",
        path="/v1/users/{name}",
        back="/users",
        said="User {name} is gone.",
    ),
    Form(
        name="token",
        needs="",
        method="POST",
        path="/v1/tokens",
        fields={"note": text, "scopes": words, "life_s": DURATION, "user": text},
        back="/tokens",
        said="The token is made. Keep it where nobody else reads:",
    ),
    Form(
        name="token-revoke",
        needs="",
        method="DELETE",
        path="/v1/tokens/{id}",
        back="/tokens",
        said="Token {id} is refused from now on.",
    ),
)
