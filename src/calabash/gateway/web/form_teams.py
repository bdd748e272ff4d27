"""Forms of teams: tenants, projects, users, members, tokens."""

from __future__ import annotations

from calabash.api import endpoints
from calabash.gateway.web.forms import (
    DURATION,
    Form,
    decimal,
    decimal_or_none,
    flag,
    network_bounds,
    text,
    text_or_none,
    whole,
    words,
)

_AMOUNTS = {"guarantee": decimal, "limit": decimal_or_none, "weight": decimal, "new": flag}

TEAMS = (
    Form(
        name="tenant",
        needs="manage-tenants",
        endpoint=endpoints.PUT_TENANT,
        at=("name",),
        fields={
            **_AMOUNTS,
            "budget": text_or_none,
            "slices_per_user": whole,
            "run_s_max": DURATION,
            "priority_min": whole,
            "priority_max": whole,
            "modes": words,
            "networks": network_bounds,
        },
        back="/tenants/{name}",
        said="Tenant {name} saved.",
    ),
    Form(
        name="tenant-delete",
        needs="manage-tenants",
        endpoint=endpoints.DELETE_TENANT,
        at=("name",),
        back="/tenants",
        said="Tenant {name} deleted.",
    ),
    Form(
        name="project",
        needs="manage-projects",
        endpoint=endpoints.PUT_PROJECT,
        at=("tenant", "name"),
        fields=_AMOUNTS,
        back="/tenants/{tenant}",
        said="Project {name} saved.",
    ),
    Form(
        name="project-delete",
        needs="manage-projects",
        endpoint=endpoints.DELETE_PROJECT,
        at=("tenant", "name"),
        back="/tenants/{tenant}",
        said="Project {name} deleted.",
    ),
    Form(
        name="member",
        needs="manage-members",
        endpoint=endpoints.ADD_MEMBER,
        fields={"user": text, "role": text, "tenant": text, "project": text},
        back="/tenants/{place}",
        said="{user} has the role {role}.",
    ),
    Form(
        name="member-remove",
        needs="manage-members",
        endpoint=endpoints.REMOVE_MEMBER,
        query={"user": text, "tenant": text, "project": text},
        back="/tenants/{place}",
        said="{user} removed from the members.",
    ),
    Form(
        name="user",
        needs="manage-users",
        endpoint=endpoints.PUT_USER,
        at=("name",),
        fields={"login": text, "email": text, "subject": text, "new": flag},
        back="/users",
        said="User {name} saved.",
    ),
    Form(
        name="user-delete",
        needs="manage-users",
        endpoint=endpoints.DELETE_USER,
        at=("name",),
        back="/users",
        said="User {name} deleted.",
    ),
    Form(
        name="token",
        needs="",
        endpoint=endpoints.CREATE_TOKEN,
        fields={"note": text, "scopes": words, "life_s": DURATION, "user": text},
        back="/tokens",
        said="Token created. Store it where only you can read it:",
    ),
    Form(
        name="token-revoke",
        needs="",
        endpoint=endpoints.DELETE_TOKEN,
        at=("id",),
        back="/tokens",
        said="Token {id} revoked.",
    ),
)
