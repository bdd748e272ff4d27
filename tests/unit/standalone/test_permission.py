"""Who may do what, by the kernel's word and the host's databases."""

from __future__ import annotations

import pwd

import pytest

from calabash.model.errors import CalabashError, Reason
from calabash.seams.host.processes import Peer
from calabash.standalone.permission import GROUPS_KEPT_S, Permission

OWNER, ANN = 1 << 20, pwd.getpwnam("games").pw_uid


def peer(uid: int) -> Peer:
    return Peer(pid=1, uid=uid, gid=uid)


def refused(call: object, *given: object) -> CalabashError:
    with pytest.raises(CalabashError) as caught:
        call(*given)  # type: ignore[operator]
    assert caught.value.reason is Reason.NOT_PERMITTED
    assert caught.value.hint
    return caught.value


def test_a_pool_without_the_kernels_membership_serves_its_owner_and_root_only() -> None:
    permission = Permission(OWNER, everybody=False)
    permission.require_served(peer(OWNER))
    permission.require_served(peer(0))
    assert str(OWNER) in refused(permission.require_served, peer(ANN)).message
    assert permission.serves() == f"user {OWNER} only"
    Permission(OWNER, everybody=True).require_served(peer(ANN))


def test_the_queue_default_is_everybodys_and_another_is_for_its_list() -> None:
    permission = Permission(0, everybody=True, groups_of=lambda uid: frozenset({"lab"} if uid == ANN else ()))
    permission.require_queue(peer(ANN), "default", (), ())
    permission.require_queue(peer(0), "prod", (), ())
    permission.require_queue(peer(ANN), "prod", ("games",), ())
    permission.require_queue(peer(ANN), "prod", (), ("lab",))
    refused(permission.require_queue, peer(ANN), "prod", (), ())
    refused(permission.require_queue, peer(ANN), "prod", ("ann",), ("others",))
    refused(permission.require_queue, peer(4711), "prod", ("games",), ("lab",))


def test_a_tenant_is_the_users_own_unless_another_lists_the_user() -> None:
    permission = Permission(0, everybody=True)
    for wanted in ("", "default", "games"):
        assert permission.tenant(peer(ANN), wanted, (), ()) == "games"
    assert permission.tenant(peer(ANN), "vision", ("games",), ()) == "vision"
    assert permission.tenant(peer(0), "vision", (), ()) == "vision"
    refused(permission.tenant, peer(ANN), "vision", (), ())
    refused(permission.tenant, peer(ANN), "root", (), ())


def test_groups_are_looked_up_again_after_a_while() -> None:
    now, groups = [0.0], {"lab"}
    permission = Permission(0, everybody=True, groups_of=lambda _: frozenset(groups), clock=lambda: now[0])
    permission.require_queue(peer(ANN), "prod", (), ("lab",))
    groups.clear()
    permission.require_queue(peer(ANN), "prod", (), ("lab",))
    now[0] += GROUPS_KEPT_S + 1
    refused(permission.require_queue, peer(ANN), "prod", (), ("lab",))
