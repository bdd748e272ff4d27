"""Redaction of texts: a name is shown or hidden according to the object that it names, not according to its spelling."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from calabash.model.allocation import QueueRecord
from calabash.model.message_codec import decode_text, encode_text
from calabash.model.messages import (
    ANOTHERS,
    NAME_TYPES,
    BudgetReference,
    Message,
    Name,
    NetworkName,
    PodReference,
    ProcessDescription,
    QueueName,
    RequestName,
    TenantName,
    UserName,
    in_full,
)
from calabash.model.request import AllocationId, GpuRequest
from calabash.model.tenancy import Member, Principal, Role, Tenant
from calabash.platform.access.permission import Permission
from calabash.platform.access.visibility import Held, Visibility
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.owners import AllocationOwner

ANN = Principal(user="ann", uid=1001, roles=(Member(user="ann", role=Role.MEMBER, tenant="vision"),))
ROOT = Principal(user="root", uid=0, roles=(Member(user="root", role=Role.ADMIN),))
HIDDEN: dict[type[Name], str] = {
    RequestName: "theirs",
    QueueName: "prod",
    TenantName: "speech",
    UserName: "bob",
    ProcessDescription: "python (pid 4711, user bob) holds 20 MiB",
    NetworkName: "red/a/web1",
    PodReference: "theirs/worker-0",
    BudgetReference: "theirs/keep",
}
SHOWN: dict[type[Name], str] = {
    RequestName: "mine",
    QueueName: "vision/default",
    TenantName: "vision",
    UserName: "ann",
}


def visibility(who: Principal, *, gang: str = "") -> Visibility:
    people = TenancyDirectory(
        tenants={name: Tenant(name=name) for name in ("vision", "speech")},
        members={
            "ann": (Member(user="ann", role=Role.MEMBER, tenant="vision"),),
            "bob": (Member(user="bob", role=Role.MEMBER, tenant="speech"),),
        },
    )

    def live() -> Iterable[Held]:
        return [
            (AllocationId("mine"), GpuRequest(tenant="vision", queue="vision/default", gang=gang), 1001, "ann"),
            (AllocationId("theirs"), GpuRequest(tenant="speech", queue="prod", gang="secret"), 1002, "bob"),
        ]

    def owner(name: AllocationId) -> AllocationOwner | None:
        return None

    return Visibility(
        who,
        people=people,
        live=live,
        queues=[QueueRecord(name="prod", users=("bob",))],
        owner=owner,
        permission=Permission(0, everybody=True),
    )


@pytest.mark.parametrize("kind", NAME_TYPES)
def test_hidden_name_is_replaced_and_unknown_name_likewise(kind: type[Name]) -> None:
    for name in (HIDDEN[kind], "nobodys"):
        text = Message("it waits for {name}, and goes on", name=kind(name))
        assert visibility(ANN).text(text) == f"it waits for {ANOTHERS}, and goes on"
        assert visibility(ROOT).text(text) == in_full(text) == f"it waits for {name}, and goes on"


@pytest.mark.parametrize("kind", SHOWN)
def test_name_of_an_own_object_is_shown(kind: type[Name]) -> None:
    assert visibility(ANN).text(Message("for {name}", name=kind(SHOWN[kind]))) == f"for {SHOWN[kind]}"


@pytest.mark.parametrize("word", [*HIDDEN.values(), "secret"])
def test_word_that_equals_a_hidden_name_stays_and_own_use_of_it_shows_no_name(word: str) -> None:
    """A user who chooses the name of a hidden object for a gang cannot see from the redaction that the object exists."""
    seen = visibility(ANN, gang=word)
    assert seen.text(f"gang {word} waits for members") == f"gang {word} waits for members"
    for kind, name in HIDDEN.items():
        assert seen.text(Message("{name}", name=kind(name))) == ANOTHERS


def test_forged_and_broken_marks_of_stored_texts_leave_no_control_characters() -> None:
    mark = encode_text(Message("{name}", name=RequestName("theirs")))
    assert visibility(ANN).text(Message("{name}", name=RequestName(mark))) == ANOTHERS
    cut = [mark[:length] for length in range(1, len(mark))]
    for text in (*cut, mark + mark, mark[:3] + mark, f"\x02\x03{mark}\x1f"):
        told = visibility(ANN).text(decode_text(text))
        assert told.isprintable()
        assert "the" not in told.replace(ANOTHERS, "")
        assert visibility(ROOT).text(decode_text(text)).isprintable()
