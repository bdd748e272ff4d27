"""Tenants, projects, users, members and tokens in the database."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.billing.store import note_guarantee
from calabash.adapters.store.database import Database
from calabash.model.money import Money
from calabash.model.network import NetworkKind
from calabash.model.tenancy import Member, Project, Role, Tenant, TokenKind, TokenRecord, TokenScope, User


class TenancyTables:
    """Tenancy tables. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def database(self) -> Database:
        """Database of the tables."""
        return self._database

    def tenants(self) -> list[Tenant]:
        """Return all tenants by name."""
        return [_tenant(row) for row in _all(self._database, tables.tenants)]

    def put_tenant(self, tenant: Tenant, *, members: Sequence[Member] | None = None) -> None:
        """Create or replace the tenant.

        Args:
            members: memberships that replace all memberships with role member in the tenant itself. None to change
                no membership. Those in its projects and those with other roles are never changed.
        """
        values = asdict(tenant) | {
            "budget": str(tenant.budget.amount) if tenant.budget else "",
            "currency": tenant.budget.currency if tenant.budget else "",
            **{name: list(getattr(tenant, name)) for name in ("priorities", "modes", "models", "groups")},
            "networks": dict(tenant.networks),
        }
        table = tables.members
        plain = {"tenant": tenant.name, "project": "", "role": Role.MEMBER.value}
        with self._database.transaction() as connection:
            _replace(connection, tables.tenants, ("name",), values)
            note_guarantee(connection, tenant.name, tenant.guarantee, at=time.time())
            if members is not None:
                connection.execute(sa.delete(table).where(*(table.c[k] == v for k, v in plain.items())))
                if members:
                    connection.execute(sa.insert(table), [_member_values(m) for m in members])

    def delete_tenant(self, name: str) -> bool:
        """Delete the tenant with its projects, memberships and notifications; return False if it does not exist."""
        with self._database.transaction() as connection:
            note_guarantee(connection, name, 0.0, at=time.time())
            for table in (tables.members, tables.projects, tables.notifications, tables.deliveries):
                connection.execute(sa.delete(table).where(table.c.tenant == name))
            return connection.execute(sa.delete(tables.tenants).where(tables.tenants.c.name == name)).rowcount > 0

    def projects(self) -> list[Project]:
        """Return all projects by tenant and name."""
        return [Project(**row) for row in _all(self._database, tables.projects)]

    def put_project(self, project: Project) -> None:
        """Create the project or replace it."""
        with self._database.transaction() as connection:
            _replace(connection, tables.projects, ("tenant", "name"), asdict(project))

    def delete_project(self, tenant: str, name: str) -> bool:
        """Delete the project with its memberships; return False if it does not exist."""
        members, projects = tables.members.c, tables.projects.c
        with self._database.transaction() as connection:
            connection.execute(sa.delete(tables.members).where(members.tenant == tenant, members.project == name))
            gone = sa.delete(tables.projects).where(projects.tenant == tenant, projects.name == name)
            return connection.execute(gone).rowcount > 0

    def users(self) -> list[User]:
        """Return all users by name."""
        return [User(**row) for row in _all(self._database, tables.users)]

    def put_user(self, user: User) -> None:
        """Create the user or replace it."""
        with self._database.transaction() as connection:
            _replace(connection, tables.users, ("name",), asdict(user))

    def delete_user(self, name: str) -> bool:
        """Delete the user with its memberships and tokens; return False if it does not exist."""
        with self._database.transaction() as connection:
            for table in (tables.members, tables.tokens):
                connection.execute(sa.delete(table).where(table.c.user == name))
            return connection.execute(sa.delete(tables.users).where(tables.users.c.name == name)).rowcount > 0

    def members(self) -> list[Member]:
        """Return all memberships."""
        return [Member(**{**row, "role": Role(row["role"])}) for row in _all(self._database, tables.members)]

    def put_member(self, member: Member) -> None:
        """Create the membership, or replace its role."""
        with self._database.transaction() as connection:
            _replace(connection, tables.members, ("user", "tenant", "project"), _member_values(member))

    def delete_member(self, *, user: str, tenant: str, project: str) -> bool:
        """Delete the membership; return False if it does not exist."""
        table = tables.members
        there = (table.c.user == user, table.c.tenant == tenant, table.c.project == project)
        with self._database.transaction() as connection:
            return connection.execute(sa.delete(table).where(*there)).rowcount > 0


class TokenTable:
    """Token table. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def everything(self) -> list[TokenRecord]:
        """Return all stored tokens, including revoked and expired ones."""
        return [_token(row) for row in _all(self._database, tables.tokens)]

    def put(self, token: TokenRecord) -> None:
        """Store a new token."""
        values = asdict(token) | {"kind": token.kind.value, "scopes": [scope.value for scope in token.scopes]}
        with self._database.transaction() as connection:
            connection.execute(sa.insert(tables.tokens).values(values))

    def revoke(self, token: str, *, at: float) -> bool:
        """Revoke the token; return False if it does not exist or was revoked before.

        Of two concurrent calls, one returns True.
        """
        table = tables.tokens
        change = sa.update(table).where(table.c.id == token, table.c.revoked_at == 0.0).values(revoked_at=at)
        with self._database.transaction() as connection:
            return connection.execute(change).rowcount > 0

    def delete_expired(self, *, before_s: float) -> None:
        """Delete the tokens that expired before this time, in seconds since 1970."""
        with self._database.transaction() as connection:
            connection.execute(sa.delete(tables.tokens).where(tables.tokens.c.expires_at < before_s))


def _all(database: Database, table: sa.Table) -> list[dict[str, Any]]:
    with database.transaction() as connection:
        rows = connection.execute(sa.select(table).order_by(*table.primary_key.columns)).mappings().all()
    return [dict(row) for row in rows]


def _replace(connection: sa.Connection, table: sa.Table, keys: Sequence[str], values: Mapping[str, Any]) -> None:
    connection.execute(sa.delete(table).where(*(table.c[key] == values[key] for key in keys)))
    connection.execute(sa.insert(table).values(values))


def _tenant(row: dict[str, Any]) -> Tenant:
    amount, currency = row.pop("budget"), row.pop("currency")
    least, most = row.pop("priorities")
    lists = {name: tuple(row.pop(name)) for name in ("modes", "models", "groups")}
    budget = Money(amount=Decimal(amount), currency=currency) if amount else None
    networks = tuple((NetworkKind(kind), most) for kind, most in row.pop("networks").items())
    return Tenant(**(row | lists), budget=budget, priorities=(least, most), networks=networks)


def _member_values(member: Member) -> dict[str, Any]:
    return asdict(member) | {"role": member.role.value}


def _token(row: dict[str, Any]) -> TokenRecord:
    kind, scopes = TokenKind(row.pop("kind")), tuple(TokenScope(scope) for scope in row.pop("scopes"))
    return TokenRecord(**row, kind=kind, scopes=scopes)
