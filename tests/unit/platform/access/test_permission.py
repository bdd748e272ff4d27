"""Principals and their permissions, from peer credentials, databases of the host, tokens and tenants."""

from __future__ import annotations

import pwd
from functools import partial

import pytest

from calabash.adapters.host.processes import Peer
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Member, Principal, Role, Tenant, TokenKind, TokenRecord, User
from calabash.platform.access.permission import GROUPS_KEPT_S, HostAccounts, Permission
from calabash.platform.tenancy.directory import TenancyDirectory, by_user

OWNER, ANN = 1 << 20, pwd.getpwnam("games").pw_uid
VISION = {"vision": Tenant(name="vision", groups=("lab",)), "speech": Tenant(name="speech")}


def peer(uid: int) -> Peer:
    return Peer(pid=1, uid=uid, gid=uid)


class AccountsInGroups(HostAccounts):
    """Accounts of this machine, of which ``ANN`` is in the given groups."""

    def __init__(self, groups: set[str]) -> None:
        self._groups = groups

    def groups_of(self, uid: int) -> frozenset[str]:
        return frozenset(self._groups) if uid == ANN else frozenset()


def rules(*members: Member, groups: set[str] | None = None, users: tuple[User, ...] = ()) -> Permission:
    people = TenancyDirectory(tenants=VISION, members=by_user(members), users={u.name: u for u in users})
    return Permission(
        0,
        everybody=True,
        people=lambda: people,
        accounts=AccountsInGroups(groups or set()),
    )


def token(user: str, kind: TokenKind = TokenKind.API) -> TokenRecord:
    return TokenRecord(id="t1", user=user, kind=kind, digest="", created_at=0.0, expires_at=1.0)


def refused(call: object, *given: object, reason: Reason = Reason.NOT_PERMITTED, **named: object) -> CalabashError:
    with pytest.raises(CalabashError) as caught:
        call(*given, **named)  # type: ignore[operator]
    assert caught.value.reason is reason
    assert caught.value.hint
    return caught.value


def test_a_pool_without_the_kernels_membership_serves_its_owner_and_root_only() -> None:
    permission = Permission(OWNER, everybody=False)
    for uid in (OWNER, 0):
        permission.require_served(permission.of_peer(peer(uid)))
    assert str(OWNER) in refused(permission.require_served, permission.of_peer(peer(ANN))).message
    assert permission.serves() == f"user {OWNER} only"
    everybody = Permission(OWNER, everybody=True)
    everybody.require_served(everybody.of_peer(peer(ANN)))


def test_the_queue_default_is_everybodys_and_another_is_for_its_list() -> None:
    permission = rules(groups={"lab"})
    ann, root, other = (permission.of_peer(peer(uid)) for uid in (ANN, 0, 4711))
    permission.require_queue(ann, "default", (), ())
    permission.require_queue(root, "prod", (), ())
    permission.require_queue(ann, "prod", ("games",), ())
    permission.require_queue(ann, "prod", (), ("lab",))
    refused(permission.require_queue, ann, "prod", (), ())
    refused(permission.require_queue, ann, "prod", ("ann",), ("others",))
    refused(permission.require_queue, other, "prod", ("games",), ("lab",))


def test_who_is_a_member_of_no_tenant_has_the_one_of_its_own_name() -> None:
    permission = rules()
    ann = permission.of_peer(peer(ANN))
    for wanted in ("", "default", "games"):
        assert permission.tenant(ann, wanted) == "games"
    refused(permission.tenant, ann, "vision")
    refused(permission.tenant, ann, "root")
    assert permission.tenant(permission.of_peer(peer(0)), "vision") == "vision"


def test_members_ask_on_the_account_of_their_tenants_and_not_past_them() -> None:
    one = rules(Member(user="games", role=Role.MEMBER, tenant="vision"))
    ann = one.of_peer(peer(ANN))
    assert one.tenant(ann, "") == one.tenant(ann, "vision") == "vision"
    assert "vision" in refused(one.tenant, ann, "games").hint
    two = rules(
        Member(user="games", role=Role.MEMBER, tenant="vision"), Member(user="games", role=Role.MEMBER, tenant="speech")
    )
    assert "speech, vision" in refused(two.tenant, two.of_peer(peer(ANN)), "").message
    viewer = rules(Member(user="games", role=Role.VIEWER, tenant="vision"))
    refused(viewer.tenant, viewer.of_peer(peer(ANN)), "vision")


def test_members_of_a_group_of_the_machine_are_members_of_its_tenants() -> None:
    permission = rules(groups={"lab"})
    ann = permission.of_peer(peer(ANN))
    assert permission.tenant(ann, "") == "vision"
    assert [role.role for role in ann.roles] == [Role.MEMBER]
    refused(permission.tenant, permission.of_peer(peer(4711)), "vision")


def test_a_token_is_its_user_with_the_account_that_it_has() -> None:
    permission = rules(users=(User(name="ann", login="games"), User(name="far")))
    ann, far = permission.of_token(token("ann")), permission.of_token(token("far"))
    assert (ann.uid, ann.key, ann.local) == (ANN, str(ANN), False)
    assert (far.uid, far.key) == (-1, "user far")
    assert permission.of_peer(peer(ANN)).user == "ann"
    assert permission.of_token(token("root")).roles[0].role is Role.ADMIN
    gone = refused(permission.of_token, token("nobody-of-that-name"), reason=Reason.NOT_AUTHENTICATED)
    assert "nobody-of-that-name" in gone.message
    refused(permission.require_process, far, "enter")
    gateway = permission.of_token(token("root", TokenKind.GATEWAY))
    assert (gateway.roles, gateway.uid) == ((), -1)


def test_local_account_with_the_name_of_a_user_is_another_principal() -> None:
    permission = rules(Member(user="games", role=Role.MEMBER, tenant="vision"), users=(User(name="games"),))
    local = permission.of_peer(peer(ANN))
    assert local.user == "games@local"
    assert local.roles == ()
    assert permission.of_token(token("games")).uid == -1


def test_allocations_of_tenants_that_one_may_not_see_are_not_there() -> None:
    permission = rules(
        Member(user="games", role=Role.TENANT_ADMIN, tenant="vision"),
        Member(user="far", role=Role.MEMBER, tenant="vision"),
        users=(User(name="far"),),
    )
    ann, far = permission.of_peer(peer(ANN)), permission.of_token(token("far"))
    theirs = partial(permission.require_owner, allocation="a1", uid=4711, user="eve", queue="default")
    theirs(ann, tenant="vision")
    refused(theirs, far, tenant="vision")
    for who in (ann, far):
        refused(theirs, who, tenant="speech", reason=Reason.NOT_FOUND)
    permission.require_owner(ann, "a1", tenant="speech", uid=ANN, user="games", queue="default")


def test_groups_are_looked_up_again_after_a_while() -> None:
    now, groups = [0.0], {"lab"}
    permission = Permission(0, everybody=True, accounts=AccountsInGroups(groups), clock=lambda: now[0])
    ann = Principal(user="games", uid=ANN)
    permission.require_queue(ann, "prod", (), ("lab",))
    groups.clear()
    permission.require_queue(ann, "prod", (), ("lab",))
    now[0] += GROUPS_KEPT_S + 1
    refused(permission.require_queue, ann, "prod", (), ("lab",))


def test_what_a_role_does_not_allow_is_refused_with_whom_to_ask() -> None:
    permission = rules()
    told = refused(permission.require, permission.of_peer(peer(ANN)), Action.OPERATE, "drain devices")
    assert told.message == "user games may not drain devices"
    assert "root" in told.hint
