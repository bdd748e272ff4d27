"""One user's many requests do not stand before everybody else."""

from __future__ import annotations

from calabash.binder.local.admission import Admission
from calabash.binder.local.requests import Requester, WaitingRequest, short_command
from calabash.model.request import AllocationId, GpuRequest

_MADE = iter(range(1 << 30))


def waiting(uid: int = 1, *, queue: str = "default", gang: str = "", priority: int = 0) -> WaitingRequest:
    number = next(_MADE)
    request = GpuRequest(queue=queue, gang=gang, gang_size=2 if gang else 1, priority=priority)
    return WaitingRequest(
        id=AllocationId(f"a{number}"),
        request=request,
        requester=Requester(uid=uid, user=str(uid)),
        command=(),
        created_at=float(number),
    )


def test_window_limits_one_user_and_another_is_admitted_at_once() -> None:
    admission = Admission(window=2)
    mine = [waiting(1) for _ in range(5)]
    assert [admission.admit(w) for w in mine] == [True, True, False, False, False]
    other = waiting(2)
    assert admission.admit(other)
    assert admission.admit(waiting(1, queue="prod")), "another queue has an order of its own"
    assert admission.count_before(mine[4]) == 4
    assert admission.count_before(other) is None


def test_next_by_priority_and_age_is_admitted_when_one_leaves() -> None:
    admission = Admission(window=1)
    first, second, urgent = waiting(), waiting(), waiting(priority=5)
    assert [admission.admit(w) for w in (first, second, urgent)] == [True, False, False]
    assert admission.remove(first) == [urgent]
    assert admission.remove(urgent) == [second]
    assert admission.remove(second) == []
    assert admission.admitted() == []


def test_gang_is_admitted_as_a_whole() -> None:
    admission = Admission(window=1)
    first = waiting()
    members = [waiting(gang="g") for _ in range(3)]
    assert admission.admit(first)
    assert not any(admission.admit(m) for m in members)
    assert admission.remove(first) == members
    late = waiting(gang="g")
    assert admission.admit(late), "its gang stands there already"
    assert not admission.admit(waiting(gang="other"))


def test_request_that_does_not_wait_ignores_the_window() -> None:
    admission = Admission(window=1)
    assert admission.admit(waiting())
    assert admission.admit(waiting(), at_once=True)


def test_request_that_leaves_before_admission_admits_no_other() -> None:
    admission = Admission(window=1)
    first, second = waiting(), waiting()
    admission.admit(first)
    admission.admit(second)
    assert admission.remove(second) == []
    assert admission.admitted() == [first]


def test_journalled_command_is_cut() -> None:
    assert short_command(("python", "train.py")) == ("python", "train.py")
    long = short_command(("x" * 60_000, "y"))
    assert sum(map(len, long)) < 2100
    assert long[-1] == "..."
    assert len(short_command(tuple("a" for _ in range(10_000)))) <= 65
