"""Immutable directory of tenants, projects, users and memberships, with the lookups that requests need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from calabash.model.tenancy import Member, Project, Role, Tenant, User


@dataclass(frozen=True, slots=True, kw_only=True)
class TenancyDirectory:
    """All tenants, projects, users and memberships at one moment; immutable. A change creates a new directory.

    Args:
        tenants: by name.
        projects: by tenant and name.
        users: by name.
        members: memberships of each user.
    """

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    projects: Mapping[tuple[str, str], Project] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    members: Mapping[str, tuple[Member, ...]] = field(default_factory=dict)

    def named(self, login: str) -> str:
        """Return the name of the user that an account of this machine belongs to.

        This is the user with this login, or otherwise the name of the account itself.
        """
        for user in self.users.values():
            if user.login == login:
                return user.name
        # Another user has the name of this account, so it gets a name of its own.
        return f"{login}@local" if login in self.users else login

    def of_subject(self, subject: str) -> User | None:
        """Return the user with this OIDC subject; None if there is none."""
        return next((u for u in self.users.values() if subject and u.subject == subject), None)

    def roles(self, user: str, groups: Callable[[], frozenset[str]]) -> tuple[Member, ...]:
        """Return all memberships of a user, including those by groups of its account.

        Args:
            groups: returns the groups of the account; called only if a tenant has groups.
        """
        listed = self.members.get(user, ())
        by_group = [t for t in self.tenants.values() if t.groups]
        if not by_group:
            return listed
        mine = groups()
        there = {m.tenant for m in listed if not m.project}
        found = (t.name for t in by_group if t.name not in there and not mine.isdisjoint(t.groups))
        return (*listed, *(Member(user=user, tenant=name, role=Role.MEMBER) for name in found))

    def of_tenant(self, name: str) -> list[Member]:
        """Return the memberships of all users in a tenant and its projects; "" for the roles in the whole platform."""
        return [m for members in self.members.values() for m in members if m.tenant == name]

    def projects_of(self, tenant: str) -> list[Project]:
        return [p for (name, _), p in self.projects.items() if name == tenant]


def by_user(members: Iterable[Member]) -> dict[str, tuple[Member, ...]]:
    """Group memberships by user."""
    found: dict[str, tuple[Member, ...]] = {}
    for member in members:
        found[member.user] = (*found.get(member.user, ()), member)
    return found
