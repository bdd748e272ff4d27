"""Delivery queue of notices, in both databases: each once, in order, bounded, and counted whatever the outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from calabash.adapters.store import Store
from calabash.adapters.store import notices as module
from calabash.model.notices import Notice, NoticeChannel, NoticeKind, Notification


def _to(tenant: str = "vision", name: str = "hook", *kinds: NoticeKind) -> Notification:
    return Notification(
        tenant=tenant,
        name=name,
        channel=NoticeChannel.WEBHOOK,
        target="https://example.org/x",
        kinds=kinds,
        secret="whsec_x",
        created_at=1.0,
    )


def _notice(number: int, tenant: str = "vision", kind: NoticeKind = NoticeKind.BUDGET) -> Notice:
    return Notice(id=f"n{number}", kind=kind, at=float(number), tenant=tenant, about="x", message="y")


def test_notice_goes_only_to_receivers_that_want_it(store: Store) -> None:
    table = store.notices
    for one in (_to(), _to("speech"), _to("", "all"), _to("", "evictions", NoticeKind.EVICTED)):
        table.put(one)
    assert table.post([_notice(1)]) == 2
    assert {(d.tenant, d.name) for _, _, d in table.heads(now_s=0.0)} == {("", "all"), ("vision", "hook")}
    assert {d.notice for _, _, d in table.heads(now_s=0.0)} == {_notice(1)}


def test_repeated_notice_is_delivered_once(store: Store) -> None:
    store.notices.put(_to())
    assert [store.notices.post([_notice(1), _notice(1)], cursor=7) for _ in range(3)] == [1, 0, 0]
    assert store.notices.cursor() == 7
    ((_, _, delivery),) = store.notices.heads(now_s=0.0)
    store.notices.taken(delivery, at=2.0)
    store.notices.taken(delivery, at=2.0)
    assert store.notices.post([_notice(1)]) == 0
    ((_, state),) = store.notices.notifications()
    assert (state.delivered, state.waiting) == (1, 0)


def test_notices_of_a_receiver_are_ordered_and_a_failure_delays_only_its_receiver(store: Store) -> None:
    table = store.notices
    table.put(_to())
    table.put(_to(name="other"))
    table.post([_notice(2), _notice(1)])
    heads = {d.name: d for _, _, d in table.heads(now_s=10.0)}
    assert {name: d.notice.id for name, d in heads.items()} == {"hook": "n1", "other": "n1"}
    table.postpone(heads["hook"], at=10.0, next_at=15.0, error="no")
    assert [d.name for _, _, d in table.heads(now_s=14.0)] == ["other"]
    assert table.next_s() == 0.0
    table.refused(heads["other"], at=10.0, error="never")
    assert {d.name: d.notice.id for _, _, d in table.heads(now_s=15.0)} == {"hook": "n1", "other": "n2"}
    states = {one.name: state for one, state in table.notifications()}
    assert (states["hook"].tries, states["hook"].last_error, states["hook"].waiting) == (1, "no", 2)
    assert (states["other"].failed, states["other"].last_error) == (1, "never")


def test_a_notification_that_is_changed_is_tried_at_once_and_keeps_what_waits(store: Store) -> None:
    store.notices.put(_to())
    store.notices.post([_notice(1)])
    ((_, _, delivery),) = store.notices.heads(now_s=0.0)
    store.notices.postpone(delivery, at=0.0, next_at=1e9, error="no")
    store.notices.put(replace(_to(), target="https://example.org/y"))
    ((one, state, again),) = store.notices.heads(now_s=0.0)
    assert (one.target, state.tries, again.id) == ("https://example.org/y", 0, delivery.id)


def test_a_tenant_takes_its_notifications_with_it(store: Store) -> None:
    store.notices.put(_to())
    store.notices.put(_to("", "all"))
    store.notices.post([_notice(1)])
    store.tenancy.delete_tenant("vision")
    assert [(one.tenant, state.waiting) for one, state in store.notices.notifications()] == [("", 1)]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["post", "again", "take", "refuse", "postpone", "trim"]), max_size=30))
def test_every_notice_is_delivered_failed_dropped_or_waits(
    store: Store, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    table = store.notices
    table.delete("vision", "hook")
    table.put(_to())
    start = _unused()
    posted = 0
    for step in steps:
        heads = table.heads(now_s=1e9)
        if step == "post":
            posted += 1
            table.post([_notice(start + posted)])
        elif step == "again" and posted:
            table.post([_notice(start + posted)])
        elif step == "trim":
            table.trim(before_s=start + posted - 1.0)
        elif heads:
            delivery = heads[0][2]
            if step == "take":
                table.taken(delivery, at=1.0)
            elif step == "refuse":
                table.refused(delivery, at=1.0, error="")
            elif step == "postpone":
                table.postpone(delivery, at=1.0, next_at=2.0, error="")
        ((_, state),) = table.notifications()
        assert state.delivered + state.failed + state.dropped + state.waiting == posted
        assert state.waiting <= 3


_USED = [0]


def _unused() -> int:
    """Return the first of a range of numbers that no earlier example used."""
    _USED[0] += 1000
    return _USED[0]
