"""Partial changes of settings: only the fields that a request names are changed."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from calabash.api.replies import QueueView
from calabash.api.requests import QueueSettings
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason
from calabash.platform.settings_changes import (
    changed_names,
    changed_queue,
    guarantee_warnings,
    require_presence,
)

PROD = QueueRecord(name="prod", parent="top", deserved=4.0, limit=8.0, weight=2.0, users=("ann",), groups=("lab",))


def test_queue_keeps_the_settings_that_a_request_does_not_name() -> None:
    assert changed_queue(PROD, QueueSettings()) == PROD
    changed = changed_queue(PROD, QueueSettings(limit=None, add_users=["bob"]))
    assert (changed.limit, changed.users) == (None, ("ann", "bob"))
    assert (changed.parent, changed.deserved, changed.weight, changed.groups) == ("top", 4.0, 2.0, ("lab",))


@pytest.mark.parametrize(
    "wanted", [QueueSettings(guarantee=3.0), QueueSettings(deserved=3.0), QueueSettings(guarantee=3.0, deserved=3.0)]
)
def test_guarantee_of_a_queue_has_a_present_and_a_former_name(wanted: QueueSettings) -> None:
    assert changed_queue(PROD, wanted).deserved == wanted.guaranteed == 3.0


def test_different_guarantees_by_both_names_are_refused() -> None:
    with pytest.raises(CalabashError, match=r"guarantee 3\.0 and deserved 4\.0 differ"):
        changed_queue(PROD, QueueSettings(guarantee=3.0, deserved=4.0))


def test_names_to_add_and_remove_apply_to_the_names_that_replace_the_list() -> None:
    assert changed_names("them", ["a"], UNSET, ["b", "a"], []) == ("a", "b")
    assert changed_names("them", ["a"], ["c"], ["d"], ["c"]) == ("d",)


def test_name_to_remove_that_is_not_listed_is_refused_with_those_that_are() -> None:
    with pytest.raises(CalabashError, match="x is not one of the users of queue prod") as refused:
        changed_queue(PROD, QueueSettings(remove_users=["x"]))
    assert refused.value.reason is Reason.NOT_FOUND
    assert "ann" in (refused.value.hint or "")


@pytest.mark.parametrize(("exists", "new"), [(True, False), (False, True), (True, UNSET), (False, UNSET)])
def test_presence_that_the_request_expects_is_accepted(exists: bool, new: bool) -> None:
    assert require_presence("queue", "q", exists=exists, new=new) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(("exists", "new", "reason"), [(True, True, "conflict"), (False, False, "not_found")])
def test_presence_that_the_request_does_not_expect_is_refused(exists: bool, new: bool, reason: str) -> None:
    with pytest.raises(CalabashError) as refused:
        require_presence("project", "train", tenant="vision", exists=exists, new=new)
    assert refused.value.reason == reason
    assert "vision/train" in refused.value.message
    assert "vision train" in (refused.value.hint or "")


def test_warning_counts_the_guarantees_of_queues_without_a_parent() -> None:
    def queue(name: str, guarantee: float, parent: str = "") -> QueueView:
        return QueueView(
            name=name,
            parent=parent,
            guarantee=guarantee,
            deserved=guarantee,
            limit=None,
            weight=1.0,
            allocated=0,
            pending=0,
            users=[],
            groups=[],
        )

    assert guarantee_warnings([queue("a", 2), queue("a/b", 2, "a"), queue("c", 1)], 3) == []
    (told,) = guarantee_warnings([queue("a", 2), queue("c", 1.5)], 3)
    assert "3.5 devices" in told
    assert "there are 3" in told
