"""Who there is and who is what: the users, members and tenants of one moment, indexed for the questions of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from calabash.model.tenancy import Member, Project, Role, Tenant, User


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Never changed: a change makes another one.

    Args:
        projects: by tenant and name. members: of each user.
    """

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    projects: Mapping[tuple[str, str], Project] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    members: Mapping[str, tuple[Member, ...]] = field(default_factory=dict)

    def named(self, login: str) -> str:
        """What the user with that account of this machine is called here."""
        for user in self.users.values():
            if user.login == login:
                return user.name
        # Somebody else has the name of this account: neither may be taken for the other.
        return f"{login}@local" if login in self.users else login

    def of_subject(self, subject: str) -> User | None:
        """The user that an OIDC provider calls so."""
        return next((u for u in self.users.values() if subject and u.subject == subject), None)

    def roles(self, user: str, groups: Callable[[], frozenset[str]]) -> tuple[Member, ...]:
        """All memberships of a user; ``groups`` are those of its account, asked for when it matters."""
        listed = self.members.get(user, ())
        by_group = [t for t in self.tenants.values() if t.groups]
        if not by_group:
            return listed
        mine = groups()
        there = {m.tenant for m in listed if not m.project}
        found = (t.name for t in by_group if t.name not in there and not mine.isdisjoint(t.groups))
        return (*listed, *(Member(user=user, tenant=name, role=Role.MEMBER) for name in found))

    def of_tenant(self, name: str) -> list[Member]:
        """Who is a member of a tenant; "" is the platform."""
        return [m for members in self.members.values() for m in members if m.tenant == name]

    def projects_of(self, tenant: str) -> list[Project]:
        return [p for (name, _), p in self.projects.items() if name == tenant]


def by_user(members: Iterable[Member]) -> dict[str, tuple[Member, ...]]:
    """The index of ``People``."""
    found: dict[str, tuple[Member, ...]] = {}
    for member in members:
        found[member.user] = (*found.get(member.user, ()), member)
    return found
