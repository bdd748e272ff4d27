"""Who is taken for a unmanaged_process on a device, when, and what follows."""

from __future__ import annotations

import pytest

from calabash.adapters.host.processes import Process
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId
from calabash.node.audit.process_census import PERIOD_NS
from calabash.node.processes.unmanaged import (
    ListedProcess,
    OverUse,
    OverUses,
    UnmanagedPolicy,
    UnmanagedProcess,
    Verdict,
    judge_listing,
)

CARD = DeviceUuid("GPU-0")
OURS, OTHER = AllocationId("a1"), AllocationId("a2")
SECOND = 1_000_000_000


def _listed(pid: int, *, allocation: AllocationId | None = None, start: int = 7, ours: bool = False) -> ListedProcess:
    return ListedProcess(
        process=Process(pid=pid, start_time=start), used_mib=100, uid=1000, allocation=allocation, ours=ours
    )


def _looks(entries: list[ListedProcess], count: int, policy: UnmanagedPolicy = UnmanagedPolicy.TELL) -> list[Verdict]:
    verdicts: list[Verdict] = []
    known: tuple[UnmanagedProcess, ...] = ()
    for _ in range(count):
        verdict = judge_listing(known, CARD, entries, entitled={OURS}, policy=policy)
        known = verdict.unmanaged
        verdicts.append(verdict)
    return verdicts


def test_members_and_the_pools_own_processes_are_no_strangers() -> None:
    for verdict in _looks([_listed(5, allocation=OURS), _listed(6, ours=True)], 5, UnmanagedPolicy.KILL):
        assert verdict == Verdict()


def test_a_process_without_a_slice_is_told_of_once_at_the_second_look() -> None:
    verdicts = _looks([_listed(5)], 4)
    assert [[s.process.pid for s in v.found] for v in verdicts] == [[], [5], [], []]
    assert [v.kill for v in verdicts] == [()] * 4


def test_a_process_of_an_allocation_that_has_no_slice_of_this_device_is_an_intruder() -> None:
    (found,) = _looks([_listed(5, allocation=OTHER)], 2)[1].found
    assert found.allocation == OTHER


def test_one_that_is_just_ending_is_no_stranger() -> None:
    first = judge_listing((), CARD, [_listed(5, start=0)], entitled=(), policy=UnmanagedPolicy.KILL)
    second = judge_listing(first.unmanaged, CARD, [_listed(5, start=0)], entitled=(), policy=UnmanagedPolicy.KILL)
    gone = judge_listing(second.unmanaged, CARD, [], entitled=(), policy=UnmanagedPolicy.KILL)
    assert not (first.found)
    assert not (second.found)
    assert not (gone.found)
    assert not (gone.gone)


def test_one_that_this_machine_does_not_show_is_told_of_and_never_killed() -> None:
    verdicts = _looks([_listed(5, start=0)], 4, UnmanagedPolicy.KILL)
    assert [len(v.found) for v in verdicts] == [0, 0, 1, 0]
    assert not any(v.kill for v in verdicts)


@pytest.mark.parametrize("policy", [UnmanagedPolicy.TELL, UnmanagedPolicy.DRAIN])
def test_nobody_is_killed_unless_that_is_the_policy(policy: UnmanagedPolicy) -> None:
    assert not any(v.kill for v in _looks([_listed(5)], 5, policy))


def test_the_policy_kill_names_exactly_the_strangers_and_never_the_first_process() -> None:
    verdict = _looks([_listed(1), _listed(5), _listed(6, allocation=OURS)], 2, UnmanagedPolicy.KILL)[1]
    assert [s.process.pid for s in verdict.kill] == [5]


def test_a_new_process_with_an_old_pid_begins_anew() -> None:
    before = judge_listing((), CARD, [_listed(5, start=7)], entitled=(), policy=UnmanagedPolicy.KILL)
    after = judge_listing(before.unmanaged, CARD, [_listed(5, start=8)], entitled=(), policy=UnmanagedPolicy.KILL)
    assert not after.found
    assert not after.kill


def test_one_that_leaves_is_told_of_too() -> None:
    known = _looks([_listed(5)], 2)[1].unmanaged
    assert [s.process.pid for s in judge_listing(known, CARD, [], entitled=(), policy=UnmanagedPolicy.TELL).gone] == [5]


def _use(used_mib: int, processes: int = 1) -> OverUse:
    return OverUse(allocation=OURS, device=CARD, used_mib=used_mib, cap_mib=1000, processes=processes)


def test_memory_beyond_the_cap_is_told_of_once_when_it_lasts() -> None:
    state, told = OverUses(), []
    for look in range(10):
        state = state.updated([_use(5000)], look * SECOND // 2)
        told.append(len(state.lasting))
    assert told == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("phase_ms", range(0, 400, 25))
def test_memory_beyond_the_cap_is_told_of_after_1200_to_1600_ms_in_any_phase_of_the_looks(phase_ms: int) -> None:
    """docs/concepts/enforcement.md and SECURITY.md say how long a program past the library keeps its memory."""
    state, first_look_ns = OverUses(), PERIOD_NS - phase_ms * SECOND // 1000
    for now_ns in range(first_look_ns, 3 * SECOND, PERIOD_NS):
        state = state.updated([_use(5000)], now_ns)
        if state.lasting:
            break
    assert state.lasting
    assert 1.2 * SECOND <= now_ns <= 1.6 * SECOND


def test_a_moment_beyond_the_cap_and_what_drivers_round_up_is_nothing() -> None:
    state = OverUses()
    for look in range(10):
        state = state.updated([_use(5000 if look % 2 else 1000), _use(1100, processes=64)], look * SECOND)
        assert not state.lasting
