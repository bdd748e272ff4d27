"""Detection of unmanaged processes on a device and its consequences."""

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


def _verdicts(
    entries: list[ListedProcess], count: int, policy: UnmanagedPolicy = UnmanagedPolicy.TELL
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    known: tuple[UnmanagedProcess, ...] = ()
    for _ in range(count):
        verdict = judge_listing(known, CARD, entries, entitled={OURS}, policy=policy)
        known = verdict.unmanaged
        verdicts.append(verdict)
    return verdicts


def test_members_and_processes_of_the_pool_are_not_unmanaged() -> None:
    for verdict in _verdicts([_listed(5, allocation=OURS), _listed(6, ours=True)], 5, UnmanagedPolicy.KILL):
        assert verdict == Verdict()


def test_process_without_a_slice_is_reported_once_at_the_second_list() -> None:
    verdicts = _verdicts([_listed(5)], 4)
    assert [[s.process.pid for s in v.found] for v in verdicts] == [[], [5], [], []]
    assert [v.kill for v in verdicts] == [()] * 4


def test_process_of_an_allocation_without_slice_of_the_device_is_unmanaged() -> None:
    (found,) = _verdicts([_listed(5, allocation=OTHER)], 2)[1].found
    assert found.allocation == OTHER


def test_process_that_is_just_ending_is_not_reported() -> None:
    first = judge_listing((), CARD, [_listed(5, start=0)], entitled=(), policy=UnmanagedPolicy.KILL)
    second = judge_listing(first.unmanaged, CARD, [_listed(5, start=0)], entitled=(), policy=UnmanagedPolicy.KILL)
    gone = judge_listing(second.unmanaged, CARD, [], entitled=(), policy=UnmanagedPolicy.KILL)
    assert not (first.found)
    assert not (second.found)
    assert not (gone.found)
    assert not (gone.gone)


def test_process_that_the_machine_does_not_show_is_reported_and_never_killed() -> None:
    verdicts = _verdicts([_listed(5, start=0)], 4, UnmanagedPolicy.KILL)
    assert [len(v.found) for v in verdicts] == [0, 0, 1, 0]
    assert not any(v.kill for v in verdicts)


@pytest.mark.parametrize("policy", [UnmanagedPolicy.TELL, UnmanagedPolicy.DRAIN])
def test_no_process_is_killed_under_the_other_policies(policy: UnmanagedPolicy) -> None:
    assert not any(v.kill for v in _verdicts([_listed(5)], 5, policy))


def test_policy_kill_names_exactly_the_unmanaged_processes_and_never_pid_1() -> None:
    verdict = _verdicts([_listed(1), _listed(5), _listed(6, allocation=OURS)], 2, UnmanagedPolicy.KILL)[1]
    assert [s.process.pid for s in verdict.kill] == [5]


def test_new_process_with_a_reused_pid_is_counted_anew() -> None:
    before = judge_listing((), CARD, [_listed(5, start=7)], entitled=(), policy=UnmanagedPolicy.KILL)
    after = judge_listing(before.unmanaged, CARD, [_listed(5, start=8)], entitled=(), policy=UnmanagedPolicy.KILL)
    assert not after.found
    assert not after.kill


def test_end_of_an_unmanaged_process_is_reported() -> None:
    known = _verdicts([_listed(5)], 2)[1].unmanaged
    assert [s.process.pid for s in judge_listing(known, CARD, [], entitled=(), policy=UnmanagedPolicy.TELL).gone] == [5]


def _use(used_mib: int, processes: int = 1) -> OverUse:
    return OverUse(allocation=OURS, device=CARD, used_mib=used_mib, cap_mib=1000, processes=processes)


def test_lasting_memory_excess_is_reported_once() -> None:
    state, told = OverUses(), []
    for number in range(10):
        state = state.updated([_use(5000)], number * SECOND // 2)
        told.append(len(state.lasting))
    assert told == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("phase_ms", range(0, 400, 25))
def test_memory_excess_is_reported_after_1200_to_1600_ms_in_any_phase(phase_ms: int) -> None:
    """docs/concepts/enforcement.md and SECURITY.md state how long a program without the library keeps its memory."""
    state, first_ns = OverUses(), PERIOD_NS - phase_ms * SECOND // 1000
    for now_ns in range(first_ns, 3 * SECOND, PERIOD_NS):
        state = state.updated([_use(5000)], now_ns)
        if state.lasting:
            break
    assert state.lasting
    assert 1.2 * SECOND <= now_ns <= 1.6 * SECOND


def test_short_memory_excess_and_rounding_are_not_reported() -> None:
    state = OverUses()
    for number in range(10):
        state = state.updated([_use(5000 if number % 2 else 1000), _use(1100, processes=64)], number * SECOND)
        assert not state.lasting
