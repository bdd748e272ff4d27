"""Judges of a soak: each finds its kind of broken promise."""

from __future__ import annotations

from typing import Any

from bench.soak import accounts, endings, promises
from bench.soak.diary import STARVED, Diary, Fault, Run
from bench.soak.shares import Measured, disturbed

GIB = 1 << 30
CARD = {"uuid": "GPU-0", "index": 0, "memory_mib": 40_000, "replicas": 2}


def part(**more: Any) -> dict[str, Any]:
    plain = {"device": "GPU-0", "device_index": 0, "memory_mib": 10_000, "core_percent": 30}
    return plain | {"profile": "", "start": -1, "part": -1, "spill_mib": 0} | more


def held(name: str, mode: str = "vgpu", policy: str = "fixed", **more: Any) -> dict[str, Any]:
    return {"id": name, "mode": mode, "policy": policy, "state": "running", "pids": [1], "slices": [part(**more)]}


def wrong(*allocations: dict[str, Any]) -> str:
    return "; ".join(promises.promised(allocations, [CARD], {("GPU-0", "2g.10gb"): 2, ("GPU-0", "1g.5gb"): 1}))


def test_allocations_that_fit_are_no_violation() -> None:
    assert wrong() == ""
    assert wrong(held("a"), held("b", "brokered"), held("c", policy="best-effort", core_percent=100)) == ""
    assert wrong(held("a", memory_mib=50_000, spill_mib=20_000)) == ""
    assert wrong(held("a", "mig", profile="2g.10gb", start=0), held("b", "mig", profile="1g.5gb", start=2)) == ""
    assert (
        wrong(
            held("a", "mig", profile="1c.2g.10gb", start=0, part=0),
            held("b", "mig", profile="1c.2g.10gb", start=0, part=1),
        )
        == ""
    )
    assert wrong(held("a", "timeslice", memory_mib=0), held("b", "timeslice", memory_mib=0)) == ""


def test_memory_and_compute_that_are_promised_twice_are_found() -> None:
    assert "50000 MiB of 40000 MiB" in wrong(held("a", memory_mib=25_000), held("b", memory_mib=25_000))
    assert "120 %" in wrong(held("a", core_percent=60), held("b", core_percent=60, policy="burst"))
    assert "mps and vgpu" in wrong(held("a"), held("b", "mps"))
    assert "as a whole" in wrong(held("a", "exclusive"), held("b", "exclusive"))
    assert "3 tenants in turns" in wrong(*(held(name, "timeslice", memory_mib=0) for name in "abc"))


def test_overlapping_instances_are_found() -> None:
    assert "2 times" in wrong(*(held(name, "mig", profile="1g.5gb", start=3) for name in "ab"))
    assert "lies on" in wrong(held("a", "mig", profile="2g.10gb", start=2), held("b", "mig", profile="1g.5gb", start=3))


def test_a_slice_that_has_more_than_it_was_granted_is_found_by_the_cards_own_accounts() -> None:
    granted = held("a", memory_mib=1024)
    assert promises.above_slice([granted], [CARD], {1: {0: GIB}}) == []
    assert promises.above_slice([granted], [CARD], {2: {0: 2 * GIB}}) == []
    assert "granted 1024 MiB" in promises.above_slice([granted], [CARD], {1: {0: GIB + 1}})[0]


def test_quotas_that_are_exceeded_are_found() -> None:
    quota = {"tenant": "vision", "project": "", "limit": 2.0, "allocated": 2.0}
    assert promises.above_quota([quota, quota | {"limit": None, "allocated": 9.0}]) == []
    assert promises.above_quota([quota | {"allocated": 2.1}]) != []


def run(**more: Any) -> Run:
    seen: dict[str, Any] = {"tag": "t-1", "actor": "t", "tenant": "v", "words": (), "asked_at": 99.5, "pid": 5}
    seen |= {"began_at": 100.0, "ended_at": 110.0, "code": 0, "said": {"begun": 100.0, "ended": 110.0}}
    return Run(**(seen | more))


RECORD = {"id": "a1", "reason": "ended", "explanation": "", "mode": "vgpu", "slices": [part()]}
REFUSED: dict[str, Any] = {"began_at": 0.0, "said": {}}


def fault(kind: str, at: float, until: float, device: int = -1) -> Fault:
    return Fault(kind=kind, what="", at=at, until=until, device=device)


def test_endings_that_have_a_reason_are_no_violations() -> None:
    good = [
        (run(), ()),
        (run(**REFUSED, code=5, output="error: no room\nhint: wait\n"), ()),
        (run(**REFUSED, code=6, output="error: no room within 8s: it is used\n"), ()),
        (run(**REFUSED, code=1, output="error: no pool answers\n"), [fault("pool killed", 105.0, 106.0)]),
        (run(**REFUSED, code=6, output="error: the pool did not answer\n"), [fault(STARVED, 102.0, 107.0)]),
        (run(code=9, said={}), [fault("card: lost", 105.0, 106.0, device=0)]),
        (run(code=-9, harmed=["killed"]), ()),
    ]
    assert [endings.unexplained(one, RECORD, faults) for one, faults in good] == [""] * len(good)
    assert endings.unexplained(run(code=-15), RECORD | {"reason": "reclaim"}, ()) == ""
    gone = run(**REFUSED, code=3, remote=True, output="error: there is no reservation\n")
    assert endings.unexplained(gone, RECORD | {"reason": "reclaim"}, ()) == ""
    assert endings.unexplained(gone, RECORD, ()) != ""


def test_endings_without_a_reason_are_found() -> None:
    bad = [
        (run(code=None), ()),
        (run(said={"begun": 100.0}), ()),
        (run(**REFUSED, code=1), ()),
        (run(**REFUSED, code=5, output="error: no room\n"), ()),
        (run(**REFUSED, code=1, output="error: no pool answers\n"), [fault("pool killed", 1.0, 2.0)]),
        (run(**REFUSED, code=6, output="error: the pool did not answer\n"), [fault(STARVED, 1.0, 2.0)]),
        (run(code=9), [fault(STARVED, 102.0, 107.0)]),
        (run(**REFUSED, code=1, output="Traceback\nerror: x"), ()),
        (run(code=9), [fault("card: lost", 105.0, 106.0, device=3)]),
        (run(code=-9), ()),
    ]
    assert all(endings.unexplained(one, RECORD, faults) for one, faults in bad)


def row(sequence: int, from_s: float, to_s: float, **more: Any) -> dict[str, Any]:
    amounts = {"allocated_gpu_s": (to_s - from_s) * 0.3, "used_gpu_s": 0.1}
    return (
        {"allocation": "a1", "device": "GPU-0", "sequence": sequence, "from_s": from_s, "to_s": to_s} | amounts | more
    )


def judged(rows: list[dict[str, Any]], *faults: Fault, of: Run | None = None) -> list[str]:
    slices = accounts.by_slice(rows)
    return accounts.broken_chains(slices) + accounts.misjudged(of or run(), RECORD, slices, faults)


def test_usage_that_matches_the_observed_times_is_no_violation() -> None:
    assert judged([row(0, 99.8, 105.0), row(1, 105.0, 110.2)]) == []
    assert judged([row(0, 99.8, 104.0)], fault("pool killed", 104.5, 112.0)) == [], "nobody saw its end"
    waited_for = run(said={"begun": 100.0, "ended": 107.0})
    assert judged([row(0, 99.8, 107.2)], of=waited_for) == [], "who waited for the program was stopped when it ended"
    assert "charged until -" in judged([row(0, 99.8, 105.0)], of=waited_for)[0]


def test_lost_doubled_and_invented_usage_is_found() -> None:
    assert "no interval" in judged([])[0]
    assert "no interval" in judged([], fault("pool killed", 104.0, 112.0))[0], "it was known to live for 4 s"
    assert judged([], fault("pool killed", 100.3, 104.0)) == [], "it had begun when no pool looked any more"
    assert "numbered" in " ".join(judged([row(0, 99.8, 105.0), row(2, 105.0, 110.0)]))
    assert "between two" in " ".join(judged([row(0, 99.8, 105.0), row(1, 104.0, 110.0)]))
    assert "charged until -" in " ".join(judged([row(0, 99.8, 105.0)]))
    assert "charged until +" in " ".join(judged([row(0, 99.8, 150.0)]))
    assert "charged from" in " ".join(judged([row(0, 90.0, 110.0)]))
    assert "GPU s in an interval" in " ".join(judged([row(0, 99.8, 110.0, allocated_gpu_s=20.0)]))


def test_shares_are_judged_by_windows_that_nothing_disturbed() -> None:
    assert Measured(errors=[(9.0, -9.0)]).wrong() is None, "one window is no verdict"
    assert Measured(errors=[(0.5, -0.5), (9.0, -9.0), (-1.0, 1.0)]).wrong() is None
    assert Measured(errors=[(3.0, -3.0), (2.5, -2.5), (0.0, 0.0)]).wrong() == 2.5
    broken = [fault("arbiter killed", 10.0, 10.5)]
    assert disturbed(broken, 4, 11.0, 13.0)
    assert not disturbed(broken, 4, 20.0, 22.0)
    assert not disturbed([fault("gateway killed", 11.0, 12.0)], 4, 11.0, 13.0)
    lost = [fault("card: lost", 11.0, 12.0, device=4)]
    assert [disturbed(lost, device, 11.0, 13.0) for device in (3, 4)] == [False, True]


def test_a_diary_knows_faults_while_they_last_and_each_violation_once() -> None:
    diary = Diary()
    with diary.fault("pool killed", "now"):
        (lasting,) = diary.faults("pool killed")
        assert lasting.meets(lasting.at + 1000, lasting.at + 1001)
    assert not diary.faults("pool killed")[0].meets(lasting.at + 1000, lasting.at + 1001)
    assert [diary.violation("p", "x"), diary.violation("p", "x"), diary.violation("p", "y")] == [True, False, True]
    assert len(diary.violations()) == 2


def test_grant_that_could_not_be_prepared_is_not_a_reported_grant() -> None:
    first = RECORD | {"id": "a1~0123456789ab", "reason": "unhealthy", "explanation": "the driver says GPU is lost"}
    second = RECORD | {"id": "a2", "explanation": "before anybody was told of it, it lost its place to a3"}
    assert endings.reported_grants([first, RECORD, second]) == [RECORD]
    never: dict[str, Any] = {"started_at": None}
    begun: dict[str, Any] = {"started_at": 100.0}
    records = [first | never, RECORD | begun, second | begun | {"mode": "brokered"}]
    assert endings.begun_unreported(records) == [], "the worker of the third began, as it does before anybody is told"
    assert endings.begun_unreported([*records, second | begun]) == ["a2"]


def test_signal_is_known_of_a_program_with_ports_too() -> None:
    drained = RECORD | {"reason": "drained"}
    behind = run(**REFUSED, code=143, words=("--port", "red/a/p1"))
    assert endings.unexplained(behind, drained, []) == ""
    assert "nobody had harmed it" in endings.unexplained(behind, RECORD, [])
    assert "told its user nothing" in endings.unexplained(run(**REFUSED, code=143), drained, [])
