"""Tests of authorization: allowed actions, and those that no combination of roles and scopes allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model import access
from calabash.model.access import Action, is_allowed
from calabash.model.errors import CalabashError
from calabash.model.money import Money, parse_money
from calabash.model.tenancy import (
    NOBODY,
    Member,
    Principal,
    Project,
    Role,
    Tenant,
    TokenKind,
    TokenScope,
    project_of,
    project_queue,
)

TENANTS = ("vision", "speech")
PLATFORM = (Role.ADMIN, Role.OPERATOR, Role.VIEWER)
WITHIN = (Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER)
READS = {Action.SEE, Action.SEE_PLATFORM, Action.SEE_BILLS, Action.SEE_AUDIT}

of_platform = st.builds(Member, user=st.just("ann"), role=st.sampled_from(PLATFORM))
of_tenant = st.builds(
    Member, user=st.just("ann"), role=st.sampled_from(WITHIN), tenant=st.sampled_from(TENANTS), project=st.just("")
)
of_project = st.builds(
    Member,
    user=st.just("ann"),
    role=st.sampled_from((Role.MEMBER, Role.VIEWER)),
    tenant=st.sampled_from(TENANTS),
    project=st.just("train"),
)
scopes = st.lists(st.sampled_from(TokenScope), unique=True).map(tuple)
actions = st.sampled_from(Action)


def principal(*roles: Member, **more: object) -> Principal:
    return Principal(user="ann", roles=roles, **more)  # type: ignore[arg-type]


@given(roles=st.lists(of_tenant | of_project), action=actions)
def test_role_of_one_tenant_allows_nothing_in_another_tenant_or_on_the_platform(
    roles: list[Member], action: Action
) -> None:
    mine = principal(*(r for r in roles if r.tenant == "vision"))
    assert not is_allowed(mine, action, tenant="speech")
    assert not is_allowed(mine, action)


@given(role=of_platform | of_tenant | of_project, action=actions, scopes=scopes, tenant=st.sampled_from(("", *TENANTS)))
def test_token_never_extends_the_rights_of_its_user(
    role: Member, action: Action, scopes: tuple[TokenScope, ...], tenant: str
) -> None:
    narrowed = principal(role, token="t", kind=TokenKind.API, scopes=scopes)
    if is_allowed(narrowed, action, tenant=tenant):
        assert is_allowed(principal(role), action, tenant=tenant)
        assert not scopes or any(is_allowed(principal(role, scopes=(s,)), action, tenant=tenant) for s in scopes)


@given(roles=st.lists(of_platform | of_tenant), action=actions, tenant=st.sampled_from(("", *TENANTS)))
def test_login_code_gateway_token_and_unauthenticated_requester_may_do_nothing(
    roles: list[Member], action: Action, tenant: str
) -> None:
    for kind in (TokenKind.LOGIN, TokenKind.GATEWAY):
        assert not is_allowed(principal(*roles, token="t", kind=kind), action, tenant=tenant, owner="user ann")
    assert not is_allowed(NOBODY, action, tenant=tenant, owner=NOBODY.key)


@given(roles=st.lists(of_platform | of_tenant | of_project), more=of_platform | of_tenant, action=actions)
def test_additional_role_removes_no_right(roles: list[Member], more: Member, action: Action) -> None:
    for tenant in ("", *TENANTS):
        if is_allowed(principal(*roles), action, tenant=tenant):
            assert is_allowed(principal(*roles, more), action, tenant=tenant)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.ADMIN, set(Action)),
        (Role.OPERATOR, READS | {Action.OPERATE, Action.STOP}),
        (Role.VIEWER, READS),
    ],
)
def test_role_of_the_platform_applies_to_every_tenant(role: Role, allowed: set[Action]) -> None:
    who = principal(Member(user="ann", role=role))
    assert set(access.allowed_actions(who)) == set(access.allowed_actions(who, tenant="speech")) == allowed


def test_member_of_a_project_may_request_slices_in_that_project_only() -> None:
    who = principal(Member(user="ann", role=Role.MEMBER, tenant="vision", project="train"))
    assert is_allowed(who, Action.RUN, tenant="vision", project="train")
    assert not is_allowed(who, Action.RUN, tenant="vision", project="serve")
    assert not is_allowed(who, Action.RUN, tenant="vision")
    assert not is_allowed(who, Action.STOP, tenant="vision", project="train")
    assert access.requestable_tenants(who) == ("vision",)


def test_user_may_stop_own_allocations_only() -> None:
    who = Principal(user="ann", uid=1001)
    assert is_allowed(who, Action.STOP, tenant="vision", owner="1001")
    assert not is_allowed(who, Action.STOP, tenant="vision", owner="1002")
    assert not is_allowed(who, Action.RUN, tenant="vision", owner="1001")
    assert not is_allowed(Principal(user="ann", uid=1001, scopes=(TokenScope.READ,)), Action.STOP, owner="1001")


def test_personal_tenant_needs_no_role() -> None:
    who = Principal(user="ann", uid=1001, own="ann")
    assert access.allowed_actions(who, tenant="ann") == (Action.SEE, Action.RUN, Action.STOP, Action.MANAGE_NETWORKS)
    assert access.visible_tenants(who) == frozenset({"ann"})
    assert access.visible_tenants(principal(Member(user="ann", role=Role.VIEWER))) is None


@pytest.mark.parametrize(
    "given",
    [
        {"role": Role.ADMIN, "tenant": "vision"},
        {"role": Role.MEMBER},
        {"role": Role.TENANT_ADMIN},
        {"role": Role.TENANT_ADMIN, "tenant": "vision", "project": "train"},
        {"role": Role.VIEWER, "project": "train"},
    ],
)
def test_role_with_invalid_tenant_or_project_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(CalabashError) as caught:
        Member(user="ann", **given)  # type: ignore[arg-type]
    assert caught.value.hint


def test_invalid_amounts_of_tenants_are_refused_with_their_numbers() -> None:
    with pytest.raises(CalabashError, match="guarantee of 4 devices is above its limit of 2"):
        Tenant(name="vision", guarantee=4, limit=2)
    with pytest.raises(CalabashError, match="weight nan"):
        Project(tenant="vision", name="train", weight=float("nan"))
    with pytest.raises(CalabashError, match="priorities 5 to 1"):
        Tenant(name="vision", priorities=(5, 1))


def test_queue_of_a_project_is_named_after_tenant_and_project() -> None:
    assert project_queue("vision") == "vision/default"
    assert project_of("vision", project_queue("vision", "train")) == "train"
    assert project_of("vis", "vision/train") == project_of("", "/x") == ""


def test_money_is_parsed_exactly() -> None:
    assert str(parse_money("5000EUR")) == "5000EUR"
    assert parse_money("0.10 USD") == Money(amount=parse_money("0.1USD").amount, currency="USD")
    for text in ("5000", "EUR", "1e3EUR", "-1EUR", "5000eur", "1.23456EUR", ""):
        with pytest.raises(CalabashError):
            parse_money(text)
