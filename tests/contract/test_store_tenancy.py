"""Tenants, projects, users, members and tokens in SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from calabash.adapters.store import Store, open_store
from calabash.adapters.store.database import Database
from calabash.model.money import parse_money
from calabash.model.network import NetworkKind
from calabash.model.tenancy import Member, Project, Role, Tenant, TokenKind, TokenRecord, TokenScope, User

VISION = Tenant(
    name="vision",
    guarantee=4,
    limit=8,
    budget=parse_money("5000.10EUR"),
    priorities=(-5, 10),
    modes=("vgpu",),
    models=("A100",),
    slices_per_user=3,
    run_s_max=3600.0,
    groups=("lab",),
    networks=((NetworkKind.EIP, 0), (NetworkKind.VPC, 4)),
)
TOKEN = TokenRecord(
    id="abc",
    user="ann",
    kind=TokenKind.API,
    digest="0" * 64,
    created_at=1.0,
    expires_at=100.0,
    scopes=(TokenScope.READ, TokenScope.RUN),
)


def test_written_objects_are_read_by_the_next_pool(url: str) -> None:
    first = open_store(url)
    written = first.tenancy
    member = Member(user="ann", role=Role.MEMBER, tenant="vision")
    written.put_tenant(VISION, members=[member])
    written.put_tenant(Tenant(name="speech"))
    written.put_project(Project(tenant="vision", name="train", guarantee=1, limit=2))
    written.put_user(User(name="ann", login="ann", subject="https://id|7", email="ann@lab"))
    written.put_member(Member(user="bob", role=Role.VIEWER))
    first.tokens.put(TOKEN)
    first.close()
    again = open_store(url)
    found = again.tenancy
    assert found.tenants() == [Tenant(name="speech"), VISION]
    assert found.projects() == [Project(tenant="vision", name="train", guarantee=1, limit=2)]
    assert found.users() == [User(name="ann", login="ann", subject="https://id|7", email="ann@lab")]
    assert found.members() == [member, Member(user="bob", role=Role.VIEWER)]
    assert again.tokens.everything() == [TOKEN]
    again.close()


def test_a_change_replaces_and_a_deletion_takes_what_belongs_to_it(store: Store) -> None:
    tables = store.tenancy
    tables.put_tenant(VISION, members=[Member(user="ann", role=Role.MEMBER, tenant="vision")])
    tables.put_project(Project(tenant="vision", name="train"))
    tables.put_member(Member(user="ann", role=Role.VIEWER, tenant="vision", project="train"))
    tables.put_member(Member(user="eve", role=Role.TENANT_ADMIN, tenant="vision"))
    tables.put_tenant(replace(VISION, limit=None, budget=None), members=[])
    assert tables.tenants() == [replace(VISION, limit=None, budget=None)]
    assert {m.user for m in tables.members()} == {"ann", "eve"}, "only plain members of the whole tenant are replaced"
    assert tables.delete_project("vision", "train")
    assert [m.user for m in tables.members()] == ["eve"]
    assert not tables.delete_member(user="eve", tenant="vision", project="train")
    assert tables.delete_tenant("vision")
    assert not tables.delete_tenant("vision")
    assert tables.members() == []


def test_a_user_goes_with_its_roles_and_tokens(store: Store) -> None:
    tables = store.tenancy
    tables.put_user(User(name="ann"))
    tables.put_member(Member(user="ann", role=Role.ADMIN))
    store.tokens.put(TOKEN)
    assert tables.delete_user("ann")
    assert (tables.users(), tables.members(), store.tokens.everything()) == ([], [], [])
    assert not tables.delete_user("ann")


def test_one_of_two_revocations_of_a_token_succeeds(store: Store) -> None:
    tables = store.tokens
    tables.put(TOKEN)
    assert [tables.revoke("abc", at=5.0), tables.revoke("abc", at=6.0)] == [True, False]
    assert tables.everything()[0].revoked_at == 5.0
    tables.delete_expired(before_s=100.0)
    assert len(tables.everything()) == 1
    tables.delete_expired(before_s=101.0)
    assert tables.everything() == []


@pytest.mark.parametrize("name", ["vision", "a/b"])
def test_users_that_an_earlier_version_listed_for_a_tenant_are_members_of_it(url: str, name: str) -> None:
    old = Database(url)
    old.migrate("0002")
    with old.transaction() as connection:
        statement = sa.text("INSERT INTO tenants (name, users, groups) VALUES (:name, :users, :groups)")
        statement = statement.bindparams(sa.bindparam("users", type_=sa.JSON), sa.bindparam("groups", type_=sa.JSON))
        connection.execute(statement, {"name": name, "users": ["ann", "bob", "ann"], "groups": ["lab"]})
    old.close()
    store = open_store(url)
    called = name.replace("/", ".")
    assert store.tenancy.tenants() == [Tenant(name=called, groups=("lab",))]
    assert {(m.user, m.tenant, m.role) for m in store.tenancy.members()} == {
        (user, called, Role.MEMBER) for user in ("ann", "bob", called)
    }
    store.close()
