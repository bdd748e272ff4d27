"""Cards that fail under load: affected programs, time until the fault is known, and recovery of the card."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.world import HANG_S, SIM, Program, World, elapsed_until, until

from calabash.adapters.gpu.sim import NodeFile, show_node
from calabash.model.errors import CalabashError, Reason

TENANT = Path(__file__).resolve().parents[2] / "examples" / "tenant.py"
TOLD_OF_SIGNALS = (
    "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: print('signalled', flush=True));"
    "print('ready', flush=True); sys.stdin.read()"
)
POLICY = "[flapping]\nmost = 100\nhold_s = 0.1\nhold_max_s = 0.1\n[recovery]\nreset_again_s = 1\ntest_again_s = 1\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run a pool on six cards without links and two with NVLink; faults do not count as flapping."""
    world = World(tmp_path_factory.mktemp("failing") / "home", "6xT4,2xA100-40GB")
    (world.home / "health.toml").write_text(POLICY)
    world.up()
    yield world
    world.close()


@pytest.fixture
def cards(lab: World) -> Iterator[World]:
    """Yield the same pool, with all cards healthy and idle."""
    yield lab
    for program in lab.programs:
        program.close()
    lab.programs.clear()
    lab.inject("all", "recover")
    for index in range(8):
        lab.client.post(f"/v1/devices/{index}/undrain")
    until(lambda: all(d["health"] == "healthy" for d in lab.devices()), what="all cards to be well again")
    lab.forget_events()


def health(world: World, card: int) -> str:
    return str(world.devices()[card]["health"])


def happenings(world: World, card: int, *, since: float) -> list[str]:
    told = world.client.get(f"/v1/devices/{card}")["history"]
    return [f"{entry['health']}: {entry['cause']}" for entry in told if entry["at"] >= since]


def busy_ns(world: World) -> dict[int, int]:
    """Return the time in nanoseconds for which each process has kept devices busy, by process ID."""
    node = show_node(NodeFile(name=SIM, state=world.state_file))
    return {p.pid: sum(d.busy_ns for d in p.devices) for p in node.processes}


def load_on_every_card(world: World) -> dict[int, Program]:
    """Start a program on each card that keeps it busy; return the programs by the card's number."""
    programs: dict[int, Program] = {}
    command = (sys.executable, str(TENANT), "--seconds", "300", "--kernel-us", "20000")
    while len(programs) < 8:
        program, allocation = world.running(*command, memory_mib=4000, cores=100)
        programs[allocation["slices"][0]["device_index"]] = program
    until(lambda: len([n for n in busy_ns(world).values() if n]) == 8, what="all cards to be busy")
    return programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault to inject into a card, and its consequences.

    Args:
        words: kind of the fault and its value, as for ``calabash sim inject``.
        states: health states that follow while a program uses the card.
        recovers: True if the card recovers by itself.
    """

    words: tuple[str, ...]
    states: tuple[str, ...]
    recovers: bool = True


FAULTS = (
    Fault(words=("xid", "31"), states=("healthy",)),
    Fault(words=("xid", "119"), states=("draining",)),
    Fault(words=("xid", "54"), states=("lost",), recovers=False),
    Fault(words=("lost",), states=("lost",)),
    Fault(words=("hang", "4"), states=("suspect", "lost")),
    Fault(words=("throttle", "thermal"), states=("suspect",)),
    Fault(words=("ecc-double",), states=("draining",)),
)
UNHARMED = 7  # the card with no fault


def test_faults_of_all_classes_under_load_are_known_and_harm_nobody_else(cards: World) -> None:
    programs = load_on_every_card(cards)
    since, before = time.time(), busy_ns(cards)
    for card, fault in enumerate(FAULTS):
        cards.inject(str(card), *fault.words)
    until(lambda: all(known(cards, card, since=since) for card in range(len(FAULTS))), what="a verdict on every fault")
    known_at = busy_ns(cards)
    pids = [
        programs[card].pid for card in (0, UNHARMED)
    ]  # the program on the faulty card, and one on a card without a fault
    until(lambda: all(busy_ns(cards)[pid] > known_at[pid] + 500_000_000 for pid in pids), what="both to go on")
    got = [busy_ns(cards)[pid] - before[pid] for pid in pids]
    assert min(got) > 0.5 * max(got), "the application's fault has cost its program nothing"
    for card in (0, UNHARMED):
        assert programs[card].alive()
        assert health(cards, card) == "healthy"
    assert any("XID 31" in text for text in happenings(cards, 0, since=0.0))
    _all_that_may_come_back_does(cards, programs)


def known(world: World, card: int, *, since: float) -> bool:
    """Return True if the pool has detected the fault of a card since a time.

    The history is read, because the fault itself may be over when the card is polled.
    """
    states = {text.partition(": ")[0] for text in happenings(world, card, since=since)}
    return not states.isdisjoint(FAULTS[card].states)


def _all_that_may_come_back_does(cards: World, programs: dict[int, Program]) -> None:
    for program in programs.values():
        program.kill()
    until(lambda: not cards.allocations(), what="the programs to be gone")
    cards.inject("3", "recover")  # the card answers again
    cards.inject("5", "throttle", "none")
    back = [card for card, fault in enumerate(FAULTS) if fault.recovers]
    until(lambda: all(health(cards, card) == "healthy" for card in back), what="the cards to come back by themselves")
    assert health(cards, 2) == "lost"
    cards.client.post("/v1/devices/2/undrain")
    until(lambda: health(cards, 2) == "healthy", what="the card that was replaced to be tested and taken")


def test_a_card_that_needs_a_reset_gets_one_when_it_is_empty(cards: World) -> None:
    program, allocation = cards.running(memory_mib=1000, models=["T4"])
    card, since = allocation["slices"][0]["device_index"], time.time()
    cards.inject(str(card), "page-retirement")
    until(lambda: health(cards, card) == "draining", what="the card to drain")
    with pytest.raises(CalabashError) as refused:
        cards.client.post(f"/v1/devices/{card}/reset")
    assert refused.value.reason is Reason.CONFLICT
    assert allocation["id"] in refused.value.message
    program.finish()
    until(lambda: health(cards, card) == "healthy", what="the card to come back")
    causes = [text.partition(": ")[2] for text in happenings(cards, card, since=since)]
    assert causes == [
        "a page of its memory is retired at the next reset",
        "it is idle",
        "it was reset",
        "a test passed",
    ]


def test_cards_that_nvlink_joins_are_reset_together_or_not_at_all(cards: World) -> None:
    _, neighbour = cards.running(memory_mib=1000, models=["A100"])
    peer = neighbour["slices"][0]["device_index"]
    card = 13 - peer  # the other one of 6 and 7
    cards.inject(str(card), "row-remap", "1")
    until(
        lambda: "cannot be reset" in cards.devices()[card]["cause"] and health(cards, card) == "draining",
        what="the reset to be refused",
    )
    assert neighbour["id"] in cards.devices()[card]["cause"]
    assert health(cards, peer) == "healthy"
    cards.programs[-1].finish()
    until(lambda: health(cards, card) == "healthy", what="the reset when the peer is idle")


def test_a_card_whose_links_are_down_takes_nothing_new_until_they_are_up_and_what_runs_goes_on(cards: World) -> None:
    command = (sys.executable, str(TENANT), "--seconds", "300", "--kernel-us", "2000")
    programs: dict[int, Program] = {}
    while set(programs) != {6, 7}:  # the two with NVLink
        program, allocation = cards.running(*command, memory_mib=4000, cores=100, models=["A100"])
        programs[allocation["slices"][0]["device_index"]] = program
    until(lambda: all(busy_ns(cards).get(p.pid) for p in programs.values()), what="both to be busy")
    cards.inject("6", "nvlink-down", "2")
    until(lambda: health(cards, 6) == "suspect", what="the links to be missed")
    assert "2 of 12 NVLinks are down" in cards.devices()[6]["cause"]
    before = busy_ns(cards)
    until(lambda: all(busy_ns(cards)[p.pid] > before[p.pid] + 50_000_000 for p in programs.values()), what="both go on")
    assert health(cards, 7) == "healthy"
    programs[6].kill()
    until(lambda: len(cards.allocations()) == 1, what="the card with its links down to be free")
    _, small = cards.running(memory_mib=1000, cores=1)
    assert small["slices"][0]["device_index"] != 6
    cards.inject("6", "nvlink-down", "0")
    until(lambda: health(cards, 6) == "healthy", what="the card to be tested and taken back")
    cards.inject("7", "throttle", "power-brake")
    until(lambda: health(cards, 7) == "suspect", what="the brake to be seen")
    assert "braked by its power supply" in cards.devices()[7]["cause"]
    before = busy_ns(cards)
    until(lambda: busy_ns(cards)[programs[7].pid] > before[programs[7].pid] + 50_000_000, what="the program to go on")


def test_who_asked_for_a_signal_gets_it_and_nobody_else(cards: World) -> None:
    command = (sys.executable, "-c", TOLD_OF_SIGNALS)
    asked, allocation = cards.running(*command, memory_mib=1000, cores=10, on_fault="SIGUSR1", models=["A100"])
    card = allocation["slices"][0]["device_index"]
    beside: list[Program] = []
    elsewhere: list[Program] = []
    while not elsewhere:
        program, other = cards.running(*command, memory_mib=1000, cores=10, models=["A100"])
        (beside if other["slices"][0]["device_index"] == card else elsewhere).append(program)
        if len(beside) > 7:
            program, _ = cards.running(*command, memory_mib=1000, on_fault="SIGUSR1", models=["T4"])
            elsewhere.append(program)
    for program in (asked, *beside, *elsewhere):
        until(lambda program=program: program.says("ready"), what="the program to be ready")  # type: ignore[misc]
    cards.inject(str(card), "xid", "95")
    until(lambda: asked.says("signalled"), what="the signal")
    told = until(lambda: cards.events("device_unhealthy"), what="the tenants to be told")
    assert allocation["id"] in {event["allocation"] for event in told}
    why = cards.client.get(f"/v1/allocations/{allocation['id']}/why")
    assert why["reason"] == "unhealthy"
    assert "XID 95" in why["explanation"]
    asked.finish()
    until(lambda: not any(a["id"] == allocation["id"] for a in cards.allocations()), what="its slice to come back")
    afterwards = cards.client.get(f"/v1/allocations/{allocation['id']}/why")
    assert afterwards["state"] == "released"
    assert any("XID 95" in line for line in afterwards["details"])
    assert not any(program.says("signalled") or program.dead() for program in (*beside, *elsewhere))


def test_a_fault_in_a_mig_instance_takes_that_instance_out_of_service_and_no_other(
    make_world: Callable[..., World],
) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    programs = [world.running(mig="1g.5gb") for _ in range(2)]
    parts = [(world.slot_path(a["id"]) / "limits").read_bytes() for _, a in programs]
    names = [re.findall(rb"MIG-[0-9a-f-]{36}", content)[0].decode() for content in parts]
    world.inject(names[0], "xid", "95")
    shown = until(lambda: world.client.get("/v1/devices/0")["parts"], what="the fault to be seen")
    assert shown == [{"name": names[0], "health": "draining"}]
    assert health(world, 0) == "healthy"
    assert all(program.alive() for program, _ in programs)
    programs[0][0].finish()
    until(lambda: not world.client.get("/v1/devices/0")["parts"], what="the instance to be made anew")
    assert programs[1][0].alive()
    _, third = world.running(mig="1g.5gb")
    content = (world.slot_path(third["id"]) / "limits").read_bytes()
    assert names[0].encode() not in content


def test_a_drained_card_takes_nothing_new_lets_go_on_what_runs_and_outlives_the_pool(cards: World) -> None:
    program, allocation = cards.running(memory_mib=1000)
    card = allocation["slices"][0]["device_index"]
    told = cards.client.post(f"/v1/devices/{card}/drain", {"reason": "a new fan"})
    assert (told["device"]["health"], told["drained"], told["drained_why"]) == ("draining", True, "a new fan")
    cards.kill(signal.SIGKILL)
    cards.up()
    assert health(cards, card) == "draining"
    assert "a new fan" in cards.devices()[card]["cause"]
    assert program.alive()
    _, other = cards.running(memory_mib=1000)
    assert other["slices"][0]["device_index"] != card
    assert cards.client.post(f"/v1/devices/{card}/undrain")["drained"] is False
    until(lambda: health(cards, card) == "healthy", what="the card to be tested and taken back")


def test_a_card_that_was_to_be_reset_is_still_to_be_after_the_pool_was_killed(cards: World) -> None:
    program, allocation = cards.running(memory_mib=1000, models=["T4"])
    card = allocation["slices"][0]["device_index"]
    cards.inject(str(card), "xid", "48")
    until(lambda: any("XID 48" in e["message"] for e in cards.events("health")), what="the card to drain")
    cards.kill(signal.SIGKILL)
    cards.up()
    assert health(cards, card) == "draining"
    assert cards.devices()[card]["cause"] == "XID 48"
    program.finish()
    until(lambda: health(cards, card) == "healthy", what="the card to be reset, tested and taken back")


def test_a_fault_is_known_whenever_the_pool_is_killed_after_it_or_before(cards: World) -> None:
    program, allocation = cards.running(memory_mib=1000, models=["T4"])
    on = allocation["slices"][0]["device_index"]
    idle = [card for card in range(6) if card != on]
    begun = time.time()
    for card, after_s in zip(idle, (0.0, 0.001, 0.004, 0.016, 0.2), strict=True):
        cards.inject(str(card), "xid", "54")  # no counter of the card shows it
        time.sleep(after_s)
        cards.kill(signal.SIGKILL)
        if after_s == 0.0:
            cards.inject(str(on), "xid", "119")  # no process listens to events
        cards.up()
        until(lambda card=card: health(cards, card) == "lost", what="the fault to be known")  # type: ignore[misc]
    assert health(cards, on) == "draining"
    for card in idle:
        assert [text for text in happenings(cards, card, since=begun) if "XID 54" in text] == ["lost: XID 54"]
    program.finish()
    until(lambda: health(cards, on) == "healthy", what="the card to be reset, tested and taken back")
    cards.kill(signal.SIGKILL)
    cards.up()
    until(lambda: health(cards, idle[0]) == "lost", what="the pool to have begun")
    assert health(cards, on) == "healthy", "what is over is not told again"


def test_card_can_be_emptied_and_ended_programs_get_the_reason(cards: World) -> None:
    program, allocation = cards.running(memory_mib=1000)
    card = allocation["slices"][0]["device_index"]
    begun = time.monotonic()
    cards.client.post(f"/v1/devices/{card}/drain", {"reason": "a new fan", "evict": True, "grace_s": 0.5})
    until(program.dead, what="the program to be ended")
    assert time.monotonic() - begun >= 0.5
    until(lambda: not cards.allocations())
    ended = cards.allocations(ended=True)[-1]
    assert (ended["id"], ended["reason"]) == (allocation["id"], "drained")
    assert "a new fan" in ended["explanation"]
    assert health(cards, card) == "draining"


def test_a_test_of_a_card_finds_what_is_wrong_with_it(cards: World) -> None:
    good = cards.client.post("/v1/devices/1/test")
    assert good["passed"]
    assert set(good["figures"]) == {"copy_to_card", "copy_from_card", "kernel"}
    cards.inject("1", "slow", "2000%")
    slow = cards.client.post("/v1/devices/1/test")
    assert not slow["passed"]
    assert "times its own" in slow["why"]
    cards.inject("1", "recover")
    cards.inject("1", "alloc-fail", "100%")  # the pool may be testing the card itself just now
    assert "cuMemAlloc_v2 failed with 2" in cards.client.post("/v1/devices/1/test")["why"]
    cards.inject("1", "alloc-fail", "0%")
    assert cards.client.post("/v1/devices/1/test")["passed"]


def test_a_card_in_use_is_not_tested_by_hand(cards: World) -> None:
    _, allocation = cards.running(memory_mib=1000)
    with pytest.raises(CalabashError) as refused:
        cards.client.post(f"/v1/devices/{allocation['slices'][0]['device_index']}/test")
    assert refused.value.reason is Reason.CONFLICT
    assert "drain" in refused.value.hint


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/devices/99/drain", {}, Reason.NOT_FOUND),
        ("/v1/devices/GPU-/drain", {}, Reason.NOT_FOUND),
        ("/v1/devices/0/drain", {"reason": "x" * 201}, Reason.BAD_REQUEST),
        ("/v1/devices/0/drain", {"grace_s": -1}, Reason.BAD_REQUEST),
        ("/v1/devices/0/drain", {"now": True}, Reason.BAD_REQUEST),
        ("/v1/devices/0/undrain", {"now": True}, Reason.BAD_REQUEST),
    ],
)
def test_what_is_not_understood_is_refused_and_changes_nothing(
    cards: World, path: str, body: dict[str, Any], reason: Reason
) -> None:
    with pytest.raises(CalabashError) as refused:
        cards.client.post(path, body)
    assert refused.value.reason is reason
    assert all(d["health"] == "healthy" for d in cards.devices())


def test_a_pool_does_not_start_with_a_policy_that_it_does_not_understand(make_world: Callable[..., World]) -> None:
    world = make_world("1xT4")
    world.home.mkdir(exist_ok=True)
    (world.home / "health.toml").write_text("[xid]\nreset = ['many']\n")
    with pytest.raises(AssertionError, match=r"health\.toml"):
        world.up()
    assert elapsed_until(lambda: world.daemon is not None and world.daemon.poll() == 1) < HANG_S
