"""``calabash run`` and the commands around it, against a real pool on a simulated node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.terminal import TENANT, Job, Terminal, own_home, own_pool
from tests.daemons.world import World, until

WHOLE = ("--memory", "39GiB", "--cores", "100")  # a slice that leaves no room beside it
HALF = ("--memory", "19GiB", "--cores", "50")


@pytest.fixture
def terminal(world: World, tmp_path: Path) -> Iterator[Terminal]:
    """Yield a terminal at the shared pool of two A100-40GB; end the programs that it started."""
    made = Terminal(world.home, tmp_path)
    yield made
    made.close()
    until(lambda: not world.allocations(), what="the slices of what was killed to come back")


def full(terminal: Terminal) -> list[Job]:
    """Start programs that hold both cards."""
    return [terminal.start_holder(*WHOLE) for _ in range(2)]


def waiting(world: World) -> list[dict[str, Any]]:
    return [a for a in world.allocations() if a["state"] == "pending"]


# -- run is the program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)])
def test_run_ends_with_the_exit_code_of_the_program(terminal: Terminal, script: str, code: int) -> None:
    terminal("run", "--memory", "1GiB", "--cores", "10", "--", "sh", "-c", script, code=code)


def test_a_program_that_dies_of_a_signal_is_seen_as_such_by_the_shell(terminal: Terminal) -> None:
    command = " ".join(terminal.words("run", "--memory", "1GiB", "--", "sh", "-c", "'kill -TERM $$'"))
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo code $?"],
        env=terminal.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"code {128 + signal.SIGTERM}" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_program(terminal: Terminal, world: World, number: signal.Signals) -> None:
    handler = f"import signal, sys\nsignal.signal({int(number)}, lambda *_: sys.exit(42))"
    script = f"{handler}\nprint('ready', flush=True)\nsignal.pause()"
    job = terminal.start("run", "--memory", "1GiB", "--cores", "10", "--", sys.executable, "-c", script)
    job.says("ready")
    job.signal(number)
    assert job.code() == 42
    until(lambda: not world.allocations(), what="the slice to come back")


def test_input_and_output_belong_to_the_program(terminal: Terminal) -> None:
    done = terminal("run", "--memory", "1GiB", "--", "sh", "-c", "cat; echo aside >&2", stdin="through\nand through")
    assert (done.stdout, done.stderr) == ("through\nand through", "aside\n")


def test_options_after_the_program_are_the_programs(terminal: Terminal) -> None:
    done = terminal("run", "--memory", "1GiB", "echo", "--cores", "-h", "--", "--memory")
    assert done.stdout == "--cores -h -- --memory\n"


def test_the_callers_library_path_stays_behind_ours(terminal: Terminal) -> None:
    terminal.environment["LD_LIBRARY_PATH"] = "/opt/mine"
    done = terminal("run", "--memory", "1GiB", "--", "sh", "-c", 'echo "$LD_LIBRARY_PATH"')
    assert done.stdout.strip().endswith("simgpu:/opt/mine")


def test_a_program_that_is_not_there_is_127_and_one_that_may_not_run_is_126(terminal: Terminal, world: World) -> None:
    assert "not found" in terminal.refused(127, "run", "--memory", "1GiB", "--", "/no/such/program")
    assert "executable" in terminal.refused(126, "run", "--memory", "1GiB", "--", "/etc/passwd")
    until(lambda: not world.allocations(), what="the slices to come back")


def test_a_program_is_held_to_its_slice_and_sees_a_card_of_that_size(terminal: Terminal) -> None:
    done = terminal("run", "--memory", "2GiB", "--cores", "30", "--", sys.executable, str(TENANT), "--seconds", "0.3")
    said = json.loads(done.stdout)
    assert said["memory_total_bytes"] == 2 << 30
    assert (2 << 30) - (512 << 20) < said["memory_held_bytes"] < 2 << 30


def busy(terminal: Terminal, policy: str) -> int:
    options = ("--memory", "2GiB", "--cores", "20", "--policy", policy)
    done = terminal("run", *options, "--", sys.executable, str(TENANT), "--seconds", "1.5", "--kernel-us", "5000")
    said = json.loads(done.stdout)
    return int(said["launches"] * said["kernel_us"])


def test_burst_alone_gets_more_than_its_share_of_the_card_and_fixed_does_not(terminal: Terminal) -> None:
    fixed, burst = busy(terminal, "fixed"), busy(terminal, "burst")
    assert fixed < 0.40 * 1.5e6
    assert burst > 2 * fixed


def test_two_whole_cards_are_two_cards_and_nobody_else_gets_them(terminal: Terminal) -> None:
    script = (
        "import ctypes, sys\nd = ctypes.CDLL('libcuda.so.1')\nn = ctypes.c_int()\n"
        "assert d.cuInit(0) == 0 and d.cuDeviceGetCount(ctypes.byref(n)) == 0\nprint('cards', n.value, flush=True)\n"
        "sys.stdin.read()"
    )
    job = terminal.start("run", "--gpus", "2", "--mode", "exclusive", "--", sys.executable, "-c", script)
    job.says("cards 2")
    assert [d["mode"] for d in terminal.items("smi")] == ["exclusive", "exclusive"]
    assert "have room" in terminal.refused(5, "run", "--memory", "1GiB", "--cores", "1", "--", "true")
    assert job.finish() == 0


# -- explanations ------------------------------------------------------------------------------------------------


def test_nothing_free_is_said_in_one_line_with_a_hint(terminal: Terminal) -> None:
    full(terminal)
    said = terminal.refused(5, "run", "--memory", "8GiB", "--cores", "30", "--", "true")
    assert "0 of 2 devices have room" in said
    assert "--wait" in said


def test_what_no_card_can_hold_is_refused_even_with_wait(terminal: Terminal) -> None:
    for words in (("--memory", "200GiB"), ("--gpus", "3"), ("--model", "H100")):
        terminal.refused(5, "run", *words, "--wait", "60s", "--", "true")


@pytest.mark.parametrize(
    "words",
    [
        ("--mode", "quantum"),
        ("--memory", "much"),
        ("--memory", "-1GiB"),
        ("--memory", "0"),
        ("--cores", "0"),
        ("--cores", "101"),
        ("--cores", "x"),
        ("--wait", "soon"),
        ("--wait", "-5s"),
        ("--tenant", "a b"),
        ("--queue", "../x"),
        ("--gang-size", "3"),
        ("--gpus", "0"),
        ("--policy", "maybe"),
        ("--priority", "9999"),
    ],
)
def test_amounts_that_make_no_sense_are_wrong_usage(terminal: Terminal, words: tuple[str, ...]) -> None:
    terminal.refused(2, "run", *words, "--", "true")


def test_options_that_do_not_exist_are_wrong_usage(terminal: Terminal) -> None:
    assert "write calabash run [OPTIONS] COMMAND..." in terminal.refused(2, "run", "--nonsense", "1", "--", "true")
    assert "write calabash run [OPTIONS] COMMAND..." in terminal.refused(2, "run")


def test_an_unknown_queue_is_named(terminal: Terminal) -> None:
    assert "nowhere" in terminal.refused(3, "run", "--queue", "nowhere", "--memory", "1GiB", "--", "true")


# -- waiting -----------------------------------------------------------------------------------------------------


def test_who_waits_gets_the_slice_when_another_ends(terminal: Terminal, world: World) -> None:
    first, _ = full(terminal)
    job = terminal.start("run", "-q", *WHOLE, "--wait", "60s", "--", "echo", "my turn")
    until(lambda: waiting(world), what="the request to wait")
    assert "my turn" not in job.text
    first.finish()
    assert job.code() == 0
    assert job.text == "my turn\n"


def test_ctrl_c_while_waiting_leaves_no_request_behind(terminal: Terminal, world: World) -> None:
    full(terminal)
    job = terminal.start("run", "-q", *WHOLE, "--wait", "60s", "--", "true")
    until(lambda: waiting(world), what="the request to wait")
    job.signal(signal.SIGINT)
    assert job.code() == 130
    assert job.text.strip() == "interrupted"
    until(lambda: not waiting(world), what="the request to be gone")


def test_a_short_job_passes_a_waiting_large_one_only_when_it_says_how_long_it_runs(
    terminal: Terminal, world: World
) -> None:
    whole = ("run", "--mode", "exclusive")
    script = "import sys\nprint('running', flush=True)\nsys.stdin.read()"
    holder = terminal.start(*whole, "--time", "10m", "--", sys.executable, "-c", script)
    holder.says("running")
    large = terminal.start(*whole, "-q", "--gpus", "2", "--wait", "60s", "--", "echo", "both")
    until(lambda: waiting(world), what="the large request to wait")
    assert "--time" in terminal.refused(5, *whole, "--", "true")
    assert "reserved" in terminal.refused(5, *whole, "--time", "20m", "--", "true")
    assert terminal(*whole, "--time", "1m", "--", "echo", "in between").stdout == "in between\n"
    holder.finish()
    assert large.code() == 0
    assert large.text == "both\n"


def test_a_wait_that_is_over_ends_with_6(terminal: Terminal, world: World) -> None:
    full(terminal)
    assert "no room within 1s" in terminal.refused(6, "run", *WHOLE, "--wait", "1s", "--", "true")
    assert not waiting(world)


def test_why_tells_a_waiting_request_the_reason_the_numbers_and_a_way_out(terminal: Terminal, world: World) -> None:
    full(terminal)
    terminal.start("run", "--memory", "8GiB", "--wait", "60s", "--", "true")
    (request,) = until(lambda: waiting(world), what="the request to wait")
    text = terminal("why", request["id"]).stdout
    assert text.startswith(f"{request['id']}: pending (")
    assert "0 of 2 devices have room, asked 1" in text
    assert "device 0:" in text
    assert "hint: " in text
    body = terminal.json("why", request["id"])
    assert (body["kind"], body["state"]) == ("Explanation", "pending")
    assert all(body[key] for key in ("reason", "explanation", "details", "suggestions"))
    assert terminal("why", request["id"], "-o", "name").stdout.strip() == body["reason"]
    (row,) = [r for r in terminal.items("ps") if r["id"] == request["id"]]
    assert row["reason"] == body["reason"]
    assert "PENDING" in terminal("top", "--once").stdout
    assert "agone" in terminal.refused(3, "why", "agone")


def test_two_who_want_the_last_slice_at_once_do_not_both_get_it(terminal: Terminal) -> None:
    terminal.start_holder(*WHOLE)
    jobs = [terminal.start("run", *WHOLE, "--", "sh", "-c", "echo mine; cat") for _ in range(2)]
    until(lambda: any(not j.running() for j in jobs), what="one of them to be refused")
    (loser,) = [j for j in jobs if not j.running()]
    (winner,) = [j for j in jobs if j is not loser]
    assert loser.code() == 5
    winner.says("mine")
    assert winner.finish() == 0


def test_twenty_at_once_all_get_their_turn_and_no_card_is_ever_promised_twice(terminal: Terminal, world: World) -> None:
    options = ("--memory", "13GiB", "--cores", "33", "--wait", "120s")
    jobs = [terminal.start("run", *options, "--", "sleep", "0.1") for _ in range(20)]
    worst = 0

    def over() -> bool:
        nonlocal worst
        for device in world.devices():
            assert device["memory_allocated_mib"] <= device["memory_mib"]
            assert device["core_allocated_percent"] <= 100
            worst = max(worst, device["core_allocated_percent"])
        return not any(j.running() for j in jobs)

    until(over, what="all of them to be done")
    assert [j.code() for j in jobs] == [0] * 20
    assert worst >= 66


# -- gangs and queues --------------------------------------------------------------------------------------------


def test_two_members_started_in_two_terminals_start_together(terminal: Terminal, world: World) -> None:
    options = ("--memory", "10GiB", "--cores", "50", "--gang", "train", "--gang-size", "2", "--wait", "60s", "-q")
    first = terminal.start("run", *options, "--", "sh", "-c", "echo started; cat")
    (alone,) = until(lambda: waiting(world), what="the first to wait")
    assert alone["reason"] == "gang_incomplete"
    assert first.text == ""
    second = terminal.start("run", *options, "--", "sh", "-c", "echo started; cat")
    for job in (first, second):
        job.says("started")
        assert job.finish() == 0


def test_a_gang_of_three_with_two_members_waits_and_says_for_what(terminal: Terminal, world: World) -> None:
    options = ("--memory", "1GiB", "--cores", "10", "--gang", "three", "--gang-size", "3", "--wait", "3s")
    jobs = [terminal.start("run", *options, "--", "echo", "started") for _ in range(2)]
    until(lambda: len(waiting(world)) == 2, what="both to wait")
    assert {r["reason"] for r in waiting(world)} == {"gang_incomplete"}
    assert [j.code() for j in jobs] == [6, 6]
    assert all("started" not in j.text and "gang" in j.text for j in jobs)
    assert not world.allocations()


def test_a_gang_that_does_not_fit_as_a_whole_takes_nothing(terminal: Terminal, world: World) -> None:
    holder = terminal.start_holder(*WHOLE)
    options = (*WHOLE, "--gang", "pair", "--gang-size", "2", "--wait", "60s", "-q")
    jobs = [terminal.start("run", *options, "--", "echo", "started") for _ in range(2)]
    until(lambda: len(waiting(world)) == 2, what="both to wait")
    assert "reserved" in terminal.refused(5, "run", "--memory", "1GiB", "--cores", "10", "--", "true")
    assert all(j.text == "" for j in jobs)
    assert [d["memory_allocated_mib"] > 0 for d in world.devices()].count(True) == 1
    holder.finish()
    assert [j.code() for j in jobs] == [0, 0]


def test_a_queue_is_made_shown_limits_and_goes(terminal: Terminal) -> None:
    assert terminal("queue", "create", "vision", "--guarantee", "0.5", "--limit", "0.5").stdout == "vision\n"
    holder = terminal.start_holder("--queue", "vision", *HALF)
    (row,) = [q for q in terminal.items("queue", "list") if q["name"] == "vision"]
    assert (row["limit"], row["guarantee"], row["deserved"], row["allocated"], row["pending"]) == (
        0.5,
        0.5,
        0.5,
        0.5,
        0,
    )
    said = terminal.refused(5, "run", "--queue", "vision", "--memory", "1GiB", "--cores", "10", "--", "true")
    assert all(word in said for word in ("vision", "0.5"))
    assert terminal("run", "--memory", "1GiB", "--cores", "10", "--", "true").returncode == 0
    assert terminal.refused(1, "queue", "delete", "vision")
    holder.finish()
    until(lambda: terminal("queue", "delete", "vision", code=None).returncode == 0, what="the queue to be empty")
    assert terminal("queue", "list", "-o", "name").stdout == "default\n"
    terminal.refused(3, "queue", "delete", "vision")


def test_a_borrower_gives_way_to_the_queue_that_deserves_the_cards(terminal: Terminal, world: World) -> None:
    terminal("queue", "create", "owner", "--guarantee", "2")
    terminal("queue", "create", "guest", "--guarantee", "0")
    guests = [terminal.start_holder("--queue", "guest", *WHOLE) for _ in range(2)]
    job = terminal.start("run", "--queue", "owner", *WHOLE, "--wait", "30s", "--", "echo", "mine again")
    assert job.code() == 0
    assert "mine again" in job.text
    until(lambda: sum(not g.running() for g in guests) == 1, what="one borrower to be ended")
    ended = [a for a in world.allocations(ended=True) if a["queue"] == "guest" and a["state"] == "released"]
    assert "needed for" in terminal("why", ended[-1]["id"]).stdout


# -- queries -----------------------------------------------------------------------------------------------------

LISTINGS: dict[tuple[str, ...], tuple[str, str, set[str]]] = {
    ("ps",): ("AllocationList", "id", {"id", "state", "tenant", "queue", "slices", "command", "pids", "reason"}),
    ("smi",): ("DeviceList", "uuid", {"uuid", "index", "model", "memory_mib", "memory_used_mib", "health", "mode"}),
    ("queue", "list"): ("QueueList", "name", {"name", "parent", "guarantee", "limit", "allocated", "pending"}),
    ("sim", "list"): ("SimNodeList", "name", {"name", "path", "devices", "processes"}),
    ("doctor",): ("FindingList", "check", {"check", "result", "text", "hint"}),
}


@pytest.mark.parametrize("words", LISTINGS, ids=" ".join)
def test_every_listing_is_a_table_or_json_or_yaml_or_names(terminal: Terminal, words: tuple[str, ...]) -> None:
    kind, name, keys = LISTINGS[words]
    terminal.start_holder(*HALF)
    body = terminal.json(*words)
    assert (body["apiVersion"], body["kind"]) == ("calabash.dev/v1", kind)
    assert body["items"]
    assert all(keys <= set(row) for row in body["items"])
    assert [set(r) for r in terminal.yaml(*words)["items"]] == [set(r) for r in body["items"]]
    names = terminal(*words, "-o", "name").stdout.splitlines()
    assert names == [row[name] for row in body["items"]]
    table, wide = terminal(*words).stdout.splitlines(), terminal(*words, "-o", "wide").stdout.splitlines()
    assert len(table) == len(wide) == len(names) + 1
    assert table[0].isupper()
    assert set(table[0].split()) <= set(wide[0].split())
    assert "xml" in terminal(*words, "-o", "xml", code=2).stderr


def test_status_tells_where_the_pool_is_and_how_it_is(terminal: Terminal, world: World) -> None:
    body = terminal.json("status")
    assert (body["home"], body["sim"], body["devices"]) == (str(world.home), "lab", 2)
    assert body["kind"] == terminal.yaml("status")["kind"] == "Status"
    assert terminal("status", "-o", "name").stdout.strip() == body["node"]
    text = terminal("status").stdout
    assert f"pid {body['pid']}" in text
    assert body["serves"] in text
    assert ("control groups" in text) == (body["membership"] == "kernel")


def test_top_shows_who_asked_for_what_and_what_they_got(terminal: Terminal, world: World) -> None:
    world.client.put("/v1/tenants/vision", {})
    options = ("--memory", "2GiB", "--cores", "40", "--tenant", "vision")
    terminal.start("run", *options, "--", sys.executable, str(TENANT), "--seconds", "30")

    def shown() -> bool:
        slices = [a["slices"][0] for a in world.allocations() if a["slices"]]
        return bool(slices) and slices[0]["core_used_percent"] > 20 and slices[0]["memory_used_mib"] > 1500

    until(shown, what="the share to be measured")
    text = terminal("top", "--once").stdout
    (line,) = [row for row in text.splitlines() if "vision" in row]
    assert all(word in line for word in ("40%", "2GiB", "█"))


def test_a_reader_that_goes_away_is_no_error(terminal: Terminal) -> None:
    command = " ".join(terminal.words("smi"))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true; {command} | head -1"],
        env=terminal.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GPU")


# -- release -----------------------------------------------------------------------------------------------------


def test_release_ends_the_program_and_gives_the_slice_back(terminal: Terminal, world: World) -> None:
    job = terminal.start_holder(*HALF)
    (identifier,) = terminal("ps", "-o", "name").stdout.split()
    assert terminal("release", identifier).stdout == f"{identifier}\n"
    assert job.code() == -signal.SIGTERM
    until(lambda: not world.allocations(), what="the slice to come back")
    terminal.refused(3, "release", identifier)
    (ended,) = [a for a in terminal.items("ps", "--all") if a["id"] == identifier]
    assert (ended["state"], ended["reason"]) == ("released", "released")


def test_release_of_several_takes_back_all_that_are_there_and_names_the_one_that_is_not(
    terminal: Terminal, world: World
) -> None:
    jobs = [terminal.start_holder("--memory", "1GiB", "--cores", "10") for _ in range(3)]
    held = terminal("ps", "-o", "name").stdout.split()
    done = terminal("release", held[2], "a-none", held[0], held[1], held[0], code=3)
    assert done.stdout.split() == [held[2], held[0], held[1]]
    assert "no allocation 'a-none'" in done.stderr
    assert [job.code() for job in jobs] == [-signal.SIGTERM] * 3
    assert world.allocations() == []


def test_release_of_a_waiting_request_ends_its_wait(terminal: Terminal, world: World) -> None:
    full(terminal)
    job = terminal.start("run", *WHOLE, "--wait", "60s", "--", "true")
    (request,) = until(lambda: waiting(world), what="the request to wait")
    terminal("release", request["id"])
    assert job.code() == 1
    assert "cancelled" in job.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_program_that_is_killed_gives_its_slice_back(
    terminal: Terminal, world: World, number: signal.Signals
) -> None:
    job = terminal.start_holder(*HALF)
    job.signal(number)
    assert job.code() == -number
    until(lambda: not world.allocations(), what="the slice to come back")


def test_a_grandchild_keeps_the_slice_after_its_parent_is_gone(terminal: Terminal, world: World) -> None:
    job = terminal.start("run", *HALF, "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    assert job.code() == 0
    grandchild = int(job.text)
    (left,) = world.allocations()
    until(lambda: world.allocations()[0]["pids"] == [grandchild], what="the grandchild to be shown")
    os.kill(grandchild, signal.SIGKILL)
    until(lambda: not world.allocations(), what=f"{left['id']} to come back")


# -- up, down, and failures --------------------------------------------------------------------------------------


@pytest.fixture
def own_terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Yield a terminal with a home of its own and a simulated node, without a pool; stop a pool that the test leaves."""
    with own_home(tmp_path) as made:
        yield made


def pid_of(terminal: Terminal) -> int:
    return int(terminal.json("status")["pid"])


def test_up_and_down_and_up_again(own_terminal: Terminal) -> None:
    for words in (("ps",), ("smi",), ("status",), ("down",), ("queue", "list"), ("run", "--", "true"), ("top",)):
        assert "calabash up" in own_terminal.refused(1, *words)
    assert own_terminal("doctor", code=None).stdout.count("warn") >= 1
    assert own_terminal("up", "--sim", "lab").stdout.startswith("pool is up: 1 device, simulated node lab, pid ")
    pid = pid_of(own_terminal)
    assert f"pid {pid}" in own_terminal.refused(1, "up", "--sim", "lab")
    assert own_terminal("down").stdout == "pool is down\n"
    assert not Path(f"/proc/{pid}").exists()
    own_terminal("up", "--sim", "lab")
    assert pid_of(own_terminal) != pid


def test_up_without_such_a_node_or_without_cards_says_what_to_do(own_terminal: Terminal) -> None:
    assert "nosuch" in own_terminal.refused(3, "up", "--sim", "nosuch")
    if not Path("/dev/nvidiactl").exists():
        own_terminal.refused(5, "up")
    own_terminal.refused(2, "up", "--sim", "lab", "--db", "nonsense")


def test_down_right_after_a_program_has_ended_is_not_refused(own_terminal: Terminal) -> None:
    for _ in range(3):
        own_terminal("up", "--sim", "lab")
        own_terminal("run", "--memory", "4GiB", "--cores", "50", "--", "true")
        assert own_terminal("down").stdout == "pool is down\n"


def test_down_refuses_while_programs_run_and_force_ends_them(own_terminal: Terminal) -> None:
    own_terminal("up", "--sim", "lab")
    job = own_terminal.start_holder("--memory", "4GiB", "--cores", "50")
    assert "1 allocation is held" in own_terminal.refused(1, "down")
    assert job.running()
    own_terminal("down", "--force")
    assert job.code() == -signal.SIGTERM


def test_programs_live_on_under_the_same_limits_when_the_pool_is_killed(own_terminal: Terminal) -> None:
    own_terminal("up", "--sim", "lab")
    script = "echo before; read line; exec " + f"{sys.executable} {TENANT} --seconds 0.3"
    job = own_terminal.start("run", "--memory", "3GiB", "--cores", "50", "--", "sh", "-c", script)
    job.says("before")
    (before,) = own_terminal.items("ps")
    os.kill(pid_of(own_terminal), signal.SIGKILL)
    until(lambda: own_terminal("ps", code=None).returncode == 1, what="the pool to be gone")
    assert job.running()
    own_terminal("up", "--sim", "lab")
    (after,) = own_terminal.items("ps")
    same = ("id", "state", "slices", "pids", "tenant")
    drop = {"core_used_percent", "memory_used_mib", "throttled_s"}
    assert [after[k] for k in same if k != "slices"] == [before[k] for k in same if k != "slices"]
    for was, now in zip(before["slices"], after["slices"], strict=True):
        assert {k: v for k, v in was.items() if k not in drop} == {k: v for k, v in now.items() if k not in drop}
    assert own_terminal.items("smi")[0]["memory_allocated_mib"] == 3 * 1024
    job.process.stdin.write(b"go\n")  # type: ignore[union-attr]
    assert job.finish() == 0
    assert json.loads(job.text.splitlines()[-1])["memory_total_bytes"] == 3 << 30
    until(lambda: not own_terminal.items("ps"), what="the slice to come back")


def test_a_program_that_ends_while_there_is_no_pool_gives_its_slice_back(own_terminal: Terminal) -> None:
    own_terminal("up", "--sim", "lab")
    job = own_terminal.start_holder("--memory", "4GiB", "--cores", "50")
    os.kill(pid_of(own_terminal), signal.SIGKILL)
    job.kill()
    own_terminal("up", "--sim", "lab")
    until(lambda: not own_terminal.items("ps"), what="the slice to come back")
    assert own_terminal.items("smi")[0]["memory_allocated_mib"] == 0
    assert own_terminal("run", "--memory", "14GiB", "--", "true").returncode == 0


@pytest.mark.parametrize(("fault", "health"), [(("xid", "79"), "faulty"), (("lost",), "faulty")])
def test_a_broken_card_takes_no_work_and_comes_back(
    own_terminal: Terminal, fault: tuple[str, ...], health: str
) -> None:
    own_terminal("up", "--sim", "lab")
    job = own_terminal.start_holder("--memory", "4GiB", "--cores", "50")
    own_terminal("sim", "inject", "lab", "--gpu", "0", *fault)
    until(lambda: own_terminal.items("smi")[0]["health"] != "healthy", what="the fault to be seen")
    said = own_terminal.refused(5, "run", "--memory", "1GiB", "--cores", "10", "--", "true")
    assert own_terminal.items("smi")[0]["health"] in said
    assert any(r["result"] == "fail" and r["check"] == "gpu 0" for r in own_terminal.json("doctor", code=1)["items"])
    assert own_terminal.items("ps")[0]["reason"] == "unhealthy"
    own_terminal("sim", "inject", "lab", "--gpu", "0", "recover")
    job.finish()
    again = ("run", "--memory", "1GiB", "--cores", "10", "--wait", "30s", "--", "true")
    until(lambda: own_terminal(*again, code=None).returncode == 0, what="the card to come back")


def test_cards_are_shown_drained_tested_reset_and_put_back(own_terminal: Terminal) -> None:
    own_terminal("up", "--sim", "lab")
    assert [row["health"] for row in own_terminal.items("device", "list")] == ["healthy"] * len(
        own_terminal.items("smi")
    )
    job = own_terminal.start_holder("--memory", "1GiB", "--cores", "10")
    drained = own_terminal("device", "drain", "0", "--reason", "a new fan").stdout
    assert "draining" in drained
    assert "a new fan" in drained
    assert "draining" in own_terminal.refused(5, "run", "--memory", "1GiB", "--", "true")
    held = own_terminal.items("ps")[0]["id"]
    for verb in ("reset", "test"):
        assert held in own_terminal("device", verb, "0", code=None).stderr
    job.finish()
    until(lambda: not own_terminal.items("ps"), what="the slice to come back")
    tested = own_terminal("device", "test", "0").stdout
    assert tested.startswith("passed")
    own_terminal("device", "reset", "0")
    own_terminal("device", "undrain", "0")
    until(
        lambda: own_terminal.items("device", "list")[0]["health"] == "healthy",
        what="the card to be tested and taken back",
    )
    shown = own_terminal.json("device", "show", "0")
    assert [entry["cause"] for entry in shown["history"]] == [
        "drained: a new fan",
        "a test passed",
        "it was reset",
        "put back by an operator",
        "a test passed",
    ]
    assert own_terminal("device", "show", "0", "-o", "name").stdout.strip() == shown["device"]["uuid"]
    assert own_terminal.json("device", "show", shown["device"]["uuid"][:12])["device"]["index"] == 0
    own_terminal("sim", "inject", "lab", "--gpu", "0", "alloc-fail", "1")
    failed = own_terminal("device", "test", "0", code=1).stdout
    assert "cuMemAlloc_v2" in failed
    for words in (("show", "99"), ("show", "GPU"), ("drain", "a/b"), ("test", "")):
        assert "device" in own_terminal.refused(3, "device", *words)


def test_a_home_whose_socket_path_is_too_long_is_refused_with_the_limit(tmp_path: Path) -> None:
    deep = Terminal(tmp_path / ("x" * 100), tmp_path)
    deep("sim", "create", "lab", "--gpus", "1xT4")
    for words in (("up", "--sim", "lab"), ("ps",), ("run", "--", "true")):
        said = deep.refused(2, *words)
        assert "107 bytes" in said
        assert "CALABASH_HOME" in said


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = Terminal(tmp_path / "file" / "home", tmp_path)
    for code, words in ((1, ("up",)), (4, ("sim", "create", "lab", "--gpus", "1xT4"))):
        said = blocked.refused(code, *words)
        assert str(tmp_path / "file") in said
        assert "CALABASH_HOME" in said


def test_without_any_home_variable_the_commands_still_answer(tmp_path: Path) -> None:
    bare: Callable[..., Any] = Terminal(tmp_path, tmp_path)
    environment = {"PATH": os.environ["PATH"], "CALABASH_HOME": str(tmp_path / "none")}
    bare.environment = environment  # type: ignore[attr-defined]
    assert "calabash up" in bare.refused(1, "ps")  # type: ignore[attr-defined]


def test_what_one_command_had_the_next_one_gets_without_waiting(world: World, terminal: Terminal) -> None:
    whole = ("run", "--gpus", str(len(world.devices())), "--mode", "exclusive", "--", sys.executable, str(TENANT))
    for _ in range(8):
        terminal(*whole, "--seconds", "0")
    until(lambda: not world.allocations(), what="the last one's end")
    assert [a["state"] for a in world.allocations(ended=True)][-8:] == ["released"] * 8


def test_request_without_wait_is_refused_while_another_is_just_ending(world: World, terminal: Terminal) -> None:
    cards = len(world.devices())
    terminal.start_holder("--mode", "exclusive")
    short = terminal.start_holder("--memory", "1GiB", "--cores", "10")
    short.finish()
    refused = terminal.refused(5, "run", "--gpus", str(cards), "--mode", "exclusive", "--", "true")
    assert "have room" in refused


# -- memory alone ------------------------------------------------------------------------------------------------


def test_programs_that_name_memory_alone_share_a_device_and_are_told_so(tmp_path: Path) -> None:
    with own_pool(tmp_path, "1xT4") as own_terminal:
        jobs = [own_terminal.start_holder("-v", "--memory", "3GiB") for _ in range(3)]
        assert all("3GiB and best-effort compute of device 0 (" in job.text for job in jobs)
        assert all("mode vgpu" in job.text.splitlines()[0] for job in jobs)
        promised = own_terminal("run", "-v", "--memory", "1GiB", "--cores", "60", "--", "true").stderr
        assert "1GiB and 60% of compute of device 0 (" in promised
        burst = own_terminal("run", "-v", "--memory", "1GiB", "--cores", "60", "--policy", "burst", "--", "true").stderr
        assert "1GiB and at least 60% of compute" in burst
        until(lambda: len(own_terminal.items("ps")) == 3, what="the slices of what has ended to come back")
        rows = own_terminal.items("ps")
        assert [row["policy"] for row in rows] == ["best-effort"] * 3
        assert [part["core_percent"] for row in rows for part in row["slices"]] == [20] * 3  # 3 of 15 GiB
        shown = own_terminal("ps").stdout
        assert shown.count("best-effort 3GiB") == 3
        assert "best-effort" in own_terminal("top", "--once").stdout
        assert own_terminal.items("smi")[0]["core_allocated_percent"] == 0
        all_compute = own_terminal.start_holder("-v", "--memory", "1GiB", "--cores", "100")
        assert "1GiB and 100% of compute" in all_compute.text
        assert "0% of compute is free" in own_terminal.refused(
            5, "run", "--memory", "1GiB", "--cores", "10", "--", "true"
        )
        for job in (*jobs, all_compute):
            assert job.finish() == 0


def test_run_says_nothing_of_what_it_got_where_nobody_looks(terminal: Terminal) -> None:
    assert terminal("run", "--memory", "1GiB", "--", "true").stderr == ""
    assert terminal("run", "-v", "--gpus", "2", "--mode", "exclusive", "--", "true").stderr.count("all of each of") == 1


def test_a_policy_without_the_amount_that_it_needs_is_refused(terminal: Terminal) -> None:
    assert "--cores" in terminal.refused(2, "run", "--policy", "burst", "--", "true")
    assert "--cores" in terminal.refused(2, "run", "--policy", "burst", "--memory", "1GiB", "--", "true")
    assert "--memory" in terminal.refused(2, "run", "--policy", "best-effort", "--", "true")
    assert "--cores" in terminal.refused(2, "job", "start", "--policy", "burst", "--", "true")
