"""Users of the pool for identities of a provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.adapters.store import Store, open_store
from calabash.api.gateway import OidcGroup, OidcSettings
from calabash.api.requests import checked_login
from calabash.model.errors import CalabashError
from calabash.model.tenancy import Member, Role, Tenant, User
from calabash.platform.access.identities import Identities, VouchedIdentity, _suffix
from calabash.platform.tenancy.store import TenancyStore

ISSUER = "https://login.example.org"
RULES = OidcSettings(
    issuer=ISSUER,
    client_id="x",
    groups=[
        OidcGroup(group="seers", tenant="vision", role="tenant-admin"),
        OidcGroup(group="looks", tenant="vision", role="viewer"),
        OidcGroup(group="looks", tenant="nowhere", role="viewer"),
        OidcGroup(group="crew", role="operator"),
    ],
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(f"sqlite:///{tmp_path}/pool.db")
    yield made
    made.close()


@pytest.fixture
def tenancy(store: Store) -> TenancyStore:
    made = TenancyStore(store.tenancy)
    made.put_tenant(Tenant(name="vision"))
    made.put_tenant(Tenant(name="speech"))
    return made


def _who(sub: str = "1", name: str = "mary", groups: tuple[str, ...] = ()) -> VouchedIdentity:
    return VouchedIdentity(subject=f"{ISSUER}|{sub}", name=name, groups=groups)


def _roles(tenancy: TenancyStore, user: str) -> set[tuple[str, Role]]:
    return {(m.tenant, m.role) for m in tenancy.people().members.get(user, ())}


def test_a_subject_that_nobody_was_given_is_nobody(tenancy: TenancyStore) -> None:
    for identities in (Identities(tenancy), Identities(tenancy, RULES)):
        with pytest.raises(CalabashError, match="you have no account here") as failed:
            identities.user(_who(groups=("guests",)))
        assert f"--subject '{ISSUER}|1'" in failed.value.hint
    assert tenancy.people().users == {}


def test_a_user_with_that_subject_is_that_user_and_keeps_its_roles_where_no_group_is_named(
    tenancy: TenancyStore,
) -> None:
    tenancy.put_user(User(name="mary", subject=f"{ISSUER}|1"))
    tenancy.put_member(Member(user="mary", tenant="speech", role=Role.MEMBER))
    tenancy.put_member(Member(user="mary", tenant="vision", role=Role.MEMBER))
    assert Identities(tenancy).user(_who(groups=("crew",))) == "mary"
    assert _roles(tenancy, "mary") == {("speech", Role.MEMBER), ("vision", Role.MEMBER)}
    assert Identities(tenancy, RULES).user(_who(groups=("looks",))) == "mary"
    assert _roles(tenancy, "mary") == {("speech", Role.MEMBER), ("vision", Role.VIEWER)}


def test_a_group_makes_a_user_whose_roles_follow_its_groups(tenancy: TenancyStore) -> None:
    identities = Identities(tenancy, RULES)
    name = identities.user(_who(groups=("looks", "seers", "crew")))
    assert name == "mary@login.example.org"
    assert _roles(tenancy, name) == {("vision", Role.TENANT_ADMIN), ("", Role.OPERATOR)}
    assert identities.user(_who(groups=("looks",))) == name
    assert _roles(tenancy, name) == {("vision", Role.VIEWER)}
    with pytest.raises(CalabashError, match="no account"):
        identities.user(_who())
    assert _roles(tenancy, name) == set()
    assert identities.user(_who(groups=("crew",))) == name


def test_two_people_of_one_name_are_two_users_and_nobody_takes_the_name_of_another(tenancy: TenancyStore) -> None:
    identities = Identities(tenancy, RULES)
    tenancy.put_member(Member(user="mary-2@login.example.org", tenant="vision", role=Role.TENANT_ADMIN))
    names = [identities.user(_who(sub=str(n), groups=("crew",))) for n in range(3)]
    assert names == [f"mary{n}@login.example.org" for n in ("", "-3", "-4")]
    assert identities.user(_who(sub="root", name="root", groups=("crew",))) == "root@login.example.org"
    assert identities.user(_who(sub="vision", name="vision", groups=("crew",))) == "vision@login.example.org"


@given(name=st.text(max_size=256), host=st.text(alphabet="abc.-XY:/|é", max_size=100), number=st.integers(0, 10**6))
def test_user_name_is_valid_with_any_name_of_the_provider(name: str, host: str, number: int) -> None:
    class Nobody:
        users: dict[str, User] = {}  # noqa: RUF012
        tenants: dict[str, Tenant] = {}  # noqa: RUF012
        members: dict[str, Member] = {}  # noqa: RUF012

        def people(self) -> Nobody:
            return self

    who = VouchedIdentity(subject=f"https://{host}|{number}", name=name)
    made = Identities(Nobody(), RULES)._name(who)  # type: ignore[arg-type]
    assert checked_login(made).endswith(_suffix(who.subject))
