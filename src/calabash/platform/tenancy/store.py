"""Store of tenants, projects, users and memberships: in memory and in the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from calabash.adapters.store.tenancy import TenancyTables
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, Text, UserName
from calabash.model.tenancy import Member, Project, Role, Tenant, User
from calabash.platform.tenancy.directory import TenancyDirectory, by_user

Prepared = Callable[[TenancyDirectory], AbstractContextManager[None]]


class TenantDirectory:
    """Present directory of one pool, read from its tables. Only ``TenancyStore`` replaces it."""

    def __init__(self, stored: TenancyTables) -> None:
        self._people = TenancyDirectory(
            tenants={t.name: t for t in stored.tenants()},
            projects={(p.tenant, p.name): p for p in stored.projects()},
            users={u.name: u for u in stored.users()},
            members=by_user(stored.members()),
        )

    def people(self) -> TenancyDirectory:
        """Return the present tenants, projects, users and memberships."""
        return self._people

    def replace(self, people: TenancyDirectory) -> None:
        """Replace the directory after a change has been written."""
        self._people = people


class TenancyStore:
    """Tenants, projects, users and memberships of one pool. Safe for threads.

    An invalid change raises CalabashError and changes nothing. Tenants and projects have queues, which another object
    manages. Before a change of tenants or projects is written, ``prepare`` is called with the directory after the
    change, and changes the queues. If that is impossible, ``prepare`` raises CalabashError. Otherwise it returns a
    context manager, which restores the queues if the change cannot be written.
    """

    def __init__(
        self,
        stored: TenancyTables,
        *,
        directory: TenantDirectory | None = None,
        prepare: Prepared = lambda _: nullcontext(),
    ) -> None:
        self._stored = stored
        self._lock = threading.Lock()
        self._directory = directory or TenantDirectory(stored)
        self._prepare = prepare

    def people(self) -> TenancyDirectory:
        """Return the present tenants, projects, users and memberships."""
        return self._directory.people()

    def adopt(
        self, read: Callable[[], tuple[Iterable[Tenant], Iterable[Project]]], copy: Callable[[TenancyDirectory], object]
    ) -> None:
        """Replace tenants and projects by those that another program manages.

        Memberships in tenants and projects that do not exist any more are dropped. ``read`` and ``copy`` are called
        with the lock held, so that no other change comes between them.

        Args:
            read: returns all tenants and projects.
            copy: writes the new directory to this pool's tables.
        """
        with self._lock:
            before = self._directory.people()
            tenants, projects = read()
            here = {t.name: t for t in tenants}
            parts = {(p.tenant, p.name): p for p in projects}
            found = (m for members in before.members.values() for m in members)
            left = (m for m in found if not m.tenant or (m.tenant in here and _is_there(m, parts)))
            now = replace(before, tenants=here, projects=parts, members=by_user(left))
            copy(now)
            self._directory.replace(now)

    # -- tenants and projects ----------------------------------------------------------------------------------

    def put_tenant(self, tenant: Tenant, *, members: list[str] | None = None) -> None:
        """Create or change a tenant. Raises CONFLICT.

        Args:
            tenant: the tenant.
            members: users who shall have the role member in the whole tenant, instead of the present ones; None:
                unchanged.
        """
        with self._lock:
            before = self._directory.people()
            if tenant.name in before.users:
                raise _taken("tenant", tenant.name, "a user has that name")
            _check_guarantees(tenant, before.projects_of(tenant.name))
            named = None if members is None else [_plain(user, tenant.name) for user in dict.fromkeys(members)]
            after = replace(before, tenants={**before.tenants, tenant.name: tenant})
            if named is not None:
                left = (m for found in before.members.values() for m in found if not _is_plain(m, tenant.name))
                kept = [*left]
                there = {(m.user, m.tenant, m.project) for m in kept}
                named = [m for m in named if (m.user, m.tenant, m.project) not in there]
                after = replace(after, members=by_user([*kept, *named]))
            self._reform(after, lambda: self._stored.put_tenant(tenant, members=named))

    def delete_tenant(self, name: str) -> None:
        """Delete a tenant, its projects and memberships. Raises NOT_FOUND."""
        with self._lock:
            before = self._directory.people()
            if name not in before.tenants:
                raise missing("tenant", name)
            after = replace(
                before,
                tenants={n: t for n, t in before.tenants.items() if n != name},
                projects={key: p for key, p in before.projects.items() if key[0] != name},
                members=by_user(m for found in before.members.values() for m in found if m.tenant != name),
            )
            self._reform(after, lambda: self._stored.delete_tenant(name))

    def put_project(self, project: Project) -> None:
        """Create or change a project. Raises NOT_FOUND, or CONFLICT if projects are guaranteed more than their tenant."""
        with self._lock:
            before = self._directory.people()
            tenant = before.tenants.get(project.tenant)
            if tenant is None:
                raise missing("tenant", project.tenant)
            others = [p for p in before.projects_of(project.tenant) if p.name != project.name]
            _check_guarantees(tenant, [*others, project])
            after = replace(before, projects={**before.projects, (project.tenant, project.name): project})
            self._reform(after, lambda: self._stored.put_project(project))

    def delete_project(self, tenant: str, name: str) -> None:
        """Delete a project and its memberships. Raises NOT_FOUND."""
        with self._lock:
            before = self._directory.people()
            if (tenant, name) not in before.projects:
                raise missing("project", f"{tenant}/{name}")
            found = (m for members in before.members.values() for m in members)
            after = replace(
                before,
                projects={key: p for key, p in before.projects.items() if key != (tenant, name)},
                members=by_user(m for m in found if (m.tenant, m.project) != (tenant, name)),
            )
            self._reform(after, lambda: self._stored.delete_project(tenant, name))

    # -- people ------------------------------------------------------------------------------------------------

    def put_user(self, user: User) -> None:
        """Create or change a user.

        Raises CONFLICT if a tenant has the user's name, or if another user has the same account or OIDC subject.
        """
        with self._lock:
            before = self._directory.people()
            if user.name in before.tenants:
                raise _taken("user", user.name, "a tenant has that name")
            for other in before.users.values():
                if other.name == user.name:
                    continue
                if user.login and user.login == other.login:
                    raise _taken("account", user.login, Message("it is user {user}'s", user=UserName(other.name)))
                if user.subject and user.subject == other.subject:
                    raise _taken("subject", user.subject, Message("it is user {user}'s", user=UserName(other.name)))
            self._stored.put_user(user)
            self._directory.replace(replace(before, users={**before.users, user.name: user}))

    def delete_user(self, name: str) -> None:
        """Delete a user, its memberships and its stored tokens. Raises NOT_FOUND."""
        with self._lock:
            before = self._directory.people()
            if name not in before.users and name not in before.members:
                raise missing("user", name)
            self._stored.delete_user(name)
            self._directory.replace(
                replace(
                    before,
                    users={n: u for n, u in before.users.items() if n != name},
                    members={n: m for n, m in before.members.items() if n != name},
                )
            )

    def put_member(self, member: Member) -> None:
        """Set the role of a user in a tenant or project. Raises NOT_FOUND."""
        with self._lock:
            before = self._directory.people()
            if member.tenant and member.tenant not in before.tenants:
                raise missing("tenant", member.tenant)
            if member.project and (member.tenant, member.project) not in before.projects:
                raise missing("project", f"{member.tenant}/{member.project}")
            left = _without(before, member.user, member.tenant, member.project)
            self._stored.put_member(member)
            self._directory.replace(replace(before, members=by_user([*left, member])))

    def delete_member(self, *, user: str, tenant: str, project: str) -> None:
        """Delete the role of a user in a tenant or project. Raises NOT_FOUND."""
        with self._lock:
            before = self._directory.people()
            if not self._stored.delete_member(user=user, tenant=tenant, project=project):
                raise missing("member", " of ".join(filter(None, (user, "/".join(filter(None, (tenant, project)))))))
            self._directory.replace(replace(before, members=by_user(_without(before, user, tenant, project))))

    def _reform(self, after: TenancyDirectory, write: Callable[[], object]) -> None:
        with self._prepare(after):
            write()
            self._directory.replace(after)


def _is_there(member: Member, projects: Mapping[tuple[str, str], Project]) -> bool:
    return not member.project or (member.tenant, member.project) in projects


def missing(what: str, name: str) -> CalabashError:
    """Build the error for an object that does not exist or that the principal may not see."""
    return CalabashError(
        f"there is no {what} {name}", reason=Reason.NOT_FOUND, hint=f"see `calabash {_LISTED.get(what, what)} list`"
    )


_LISTED = {"member": "user", "notification": "notify", "project": "tenant project", "token": "user token"}


def _taken(what: str, name: str, why: Text) -> CalabashError:
    message = Message("{what} {name} is taken: {why}", what=what, name=name, why=why)
    return CalabashError(message, reason=Reason.CONFLICT, hint="choose another")


def _plain(user: str, tenant: str) -> Member:
    return Member(user=user, role=Role.MEMBER, tenant=tenant)


def _is_plain(member: Member, tenant: str) -> bool:
    return member == _plain(member.user, tenant)


def _without(people: TenancyDirectory, user: str, tenant: str, project: str) -> list[Member]:
    found = (m for members in people.members.values() for m in members)
    return [m for m in found if (m.user, m.tenant, m.project) != (user, tenant, project)]


def _check_guarantees(tenant: Tenant, projects: list[Project]) -> None:
    promised = sum(p.guarantee for p in projects)
    if promised > tenant.guarantee:
        raise CalabashError(
            f"the projects of tenant {tenant.name} are guaranteed {promised:g} devices, the tenant {tenant.guarantee:g}",
            reason=Reason.CONFLICT,
            hint="guarantee the tenant more, or its projects less",
        )
