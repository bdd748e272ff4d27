"""Pool daemon as its users see it: slices are granted, held, and released however their programs end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.world import World, until

from calabash.adapters.host.processes import identify
from calabash.model.errors import CalabashError, Reason

NOBODY = 65534


def test_a_program_gets_its_slice_and_gives_it_back_when_it_ends(world: World) -> None:
    world.client.put("/v1/tenants/vision", {})
    program, allocation = world.running(memory_mib=8192, cores=30, tenant="vision", policy="burst")
    part = allocation["slices"][0]
    assert (part["memory_mib"], part["core_percent"]) == (8192, 30)
    assert (allocation["tenant"], allocation["policy"], allocation["mode"]) == ("vision", "burst", "vgpu")
    card = world.devices()[part["device_index"]]
    assert (card["memory_allocated_mib"], card["core_allocated_percent"]) == (8192, 30)
    assert card["allocations"] == [allocation["id"]]
    assert program.finish() == 0
    until(lambda: not world.allocations(), what="the slice to come back")
    assert world.slots() == []
    ended = world.allocations(ended=True)[-1]
    assert (ended["state"], ended["reason"]) == ("released", "ended")
    assert ended["ended_at"] >= ended["started_at"] >= ended["created_at"]


def test_the_limits_are_in_the_slot_and_never_in_the_environment(world: World) -> None:
    granted = world.client.post("/v1/allocations", {"memory_mib": 1000, "cores": 10})
    environment = granted["environment"]
    assert environment["CALABASH_SLOT"] == granted["slot"]
    assert environment["LD_PRELOAD"].endswith("libcalabash.so")
    assert environment["CALABASH_SIM"] == str(world.state_file)
    assert environment["CUDA_VISIBLE_DEVICES"] == granted["slices"][0]["device"]
    slot = Path(granted["slot"])
    membership = world.client.get("/v1/status")["membership"]
    lease = ["lease"] if membership == "lease" else []
    assert sorted(p.name for p in slot.iterdir()) == [*lease, "limits", "usage"]
    for path in (slot, *(slot / name for name in ["limits", *lease])):
        assert path.stat().st_uid == os.geteuid()
        assert path.stat().st_mode & 0o022 == 0


def test_sigkill_of_a_program_frees_its_memory_and_its_slice(world: World, hold: str) -> None:
    program, allocation = world.running(hold, "1000", "100", memory_mib=2048, cores=30)
    until(lambda: program.says("held 1000"), what="the memory to be held")
    card = allocation["slices"][0]["device_index"]
    until(lambda: world.devices()[card]["memory_used_mib"] >= 1000, what="the driver to show it")
    program.kill()
    until(program.dead)
    until(lambda: not world.allocations(), what="the slice to come back")
    until(lambda: world.devices()[card]["memory_used_mib"] == 0, what="the driver to free it")


def test_a_cap_counts_the_context_from_the_first_moment(world: World, hold: str) -> None:
    program, allocation = world.running(hold, "4000", "20", memory_mib=2048, cores=30)
    until(lambda: program.says("held"), what="the memory to be held")
    card = allocation["slices"][0]["device_index"]
    until(lambda: world.devices()[card]["memory_used_mib"] > 1500, what="the driver to show it")
    used = world.devices()[card]["memory_used_mib"]
    assert used <= 2048
    assert used >= 2048 - 64


def test_memory_of_a_dead_process_is_free_for_its_siblings_at_once(world: World, hold: str) -> None:
    wait = "tail -f /dev/null --pid=$$"
    script = f"{wait} | {hold} 1000 100 & first=$!; read line; kill -9 $first; wait $first; exec {hold} 1500 100"
    program, _ = world.running("sh", "-c", script, memory_mib=2048, cores=30)
    until(lambda: program.says("held 1000"), what="the first to hold")
    os.write(program.stdin, b"\n")
    until(lambda: program.says("held 1500"), what="the second to hold as much as if the first had never been")


def test_two_processes_of_a_slice_are_both_seen(world: World) -> None:
    program, allocation = world.running("sh", "-c", "cat & cat; wait", memory_mib=100, cores=5)
    until(lambda: len(world.allocations()[0]["pids"]) >= 2, what="both to be listed")
    program.kill()
    until(program.dead)
    # The child holds the lease: the slice lives until the child has ended too.
    children = world.allocations()[0]["pids"]
    assert children
    assert world.allocations()[0]["id"] == allocation["id"]
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not world.allocations(), what="the slice to come back")


def test_a_program_that_closes_everything_it_inherited_keeps_its_slice(world: World) -> None:
    code = "import os, sys; os.closerange(3, 1000); print('closed', flush=True); sys.stdin.read()"
    program = world.run(sys.executable, "-c", code, memory_mib=1000)
    until(lambda: program.says("closed"))
    for _ in range(2):
        other, _ = world.running(memory_mib=1000)
        other.finish()
        until(lambda: len(world.allocations()) == 1, what="a sweep, which takes the slice of the other program")
        assert [a["pids"] for a in world.allocations()] == [[program.pid]]
    world.kill()
    world.up()
    assert [a["pids"] for a in world.allocations()] == [[program.pid]], "and a restarted pool knows it as well"
    program.finish()
    until(lambda: not world.allocations(), what="the slice to come back")


def test_a_grant_that_nobody_takes_is_revoked_when_its_asker_is_gone(world: World) -> None:
    kept = world.client.post("/v1/allocations", {"memory_mib": 1000})
    asker = os.fork()
    if asker == 0:
        world.client.post("/v1/allocations", {"memory_mib": 1000})
        os._exit(0)
    assert os.waitpid(asker, 0)[1] == 0
    until(lambda: len(world.allocations()) < 2, what="a grant to be revoked")
    assert [a["id"] for a in world.allocations()] == [kept["id"]], "the older grant still has its grace"
    assert world.slots() == [kept["id"]]


def test_a_grant_whose_asker_lives_on_is_revoked_after_its_grace(world: World) -> None:
    begun = time.monotonic()
    granted = world.client.post("/v1/allocations", {"memory_mib": 1000})
    assert world.allocations()[0]["state"] == "granted"
    until(lambda: not world.allocations(), what="the grace to end")
    assert time.monotonic() - begun > 8
    assert world.allocations(ended=True)[-1]["id"] == granted["id"]
    assert world.allocations(ended=True)[-1]["reason"] == "timeout"


def test_what_can_never_fit_is_refused_even_when_it_would_wait(world: World) -> None:
    for body, reason in (
        ({"memory_mib": 90_000}, Reason.TOO_LARGE),
        ({"gpus": 3}, Reason.TOO_LARGE),
        ({"models": ["H200"]}, Reason.SELECTOR_MISMATCH),
        ({"mode": "warp"}, Reason.UNKNOWN_MODE),
        ({"mode": "timeslice", "cores": 50}, Reason.MODE_CONFLICT),
        ({"queue": "nowhere"}, Reason.NOT_FOUND),
    ):
        with pytest.raises(CalabashError) as caught:
            world.client.post("/v1/allocations", {**body, "wait_s": 600}, timeout_s=60)
        assert caught.value.reason is reason, body
        assert caught.value.hint, body


def test_a_full_pool_says_so_per_device_and_why_explains_who_waits(world: World) -> None:
    world.running(mode="exclusive", gpus=2)
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/allocations", {"memory_mib": 1000})
    assert caught.value.reason is Reason.MODE_CONFLICT
    assert "device 0" in caught.value.message
    assert "device 1" in caught.value.message
    waiting = world.run(memory_mib=1000, wait_s=60)
    pending = until(lambda: [a for a in world.allocations() if a["state"] == "pending"])[0]
    assert pending["pids"] == [waiting.pid]
    why = world.client.get(f"/v1/allocations/{pending['id']}/why")
    assert (why["state"], why["reason"]) == ("pending", "mode_conflict")
    assert len(why["details"]) == 2
    assert why["suggestions"]


def test_who_waits_gets_the_slice_as_soon_as_it_is_free(world: World) -> None:
    first, _ = world.running(mode="exclusive", gpus=2)
    second = world.run(memory_mib=1000, wait_s=60)
    until(lambda: any(a["state"] == "pending" for a in world.allocations()), what="it to wait")
    first.finish()
    until(lambda: world.allocation_of(second), what="it to run")


def test_who_waits_too_long_is_told_why_and_leaves_the_line(world: World) -> None:
    world.running(mode="exclusive", gpus=2)
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/allocations", {"memory_mib": 1000, "wait_s": 0.3})
    assert caught.value.reason is Reason.TIMEOUT
    assert "device 0" in caught.value.message
    assert [a["state"] for a in world.allocations()] == ["running"]


def test_a_waiting_asker_that_is_killed_leaves_the_line(world: World) -> None:
    first, _ = world.running(mode="exclusive", gpus=2)
    waiting = world.run(memory_mib=1000, wait_s=60)
    until(lambda: any(a["state"] == "pending" for a in world.allocations()), what="it to wait")
    waiting.kill()
    until(waiting.dead)
    until(lambda: [a["state"] for a in world.allocations()] == ["running"], what="the line to be empty")
    first.finish()
    until(lambda: not world.allocations(), what="nothing to be held")


def test_two_who_want_the_last_slice_at_once_do_not_both_get_it(world: World) -> None:
    answers: list[str] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        try:
            world.client.post("/v1/allocations", {"mode": "exclusive"})
            answers.append("granted")
        except CalabashError as error:
            answers.append(error.reason)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["granted"] * 2 + [Reason.NO_CAPACITY] * 6


def test_modes_belong_to_devices_side_by_side_and_change_when_idle(world: World) -> None:
    exclusive, whole = world.running(mode="exclusive")
    _, shared = world.running(memory_mib=1000, cores=10)
    assert whole["slices"][0]["device_index"] != shared["slices"][0]["device_index"]
    modes = {d["index"]: d["mode"] for d in world.devices()}
    assert sorted(modes.values()) == ["exclusive", "vgpu"]
    exclusive.finish()
    until(lambda: len(world.allocations()) == 1, what="the card to be idle")
    _, turns = world.running(mode="timeslice")
    assert turns["slices"][0]["device_index"] == whole["slices"][0]["device_index"]


def test_release_by_force_ends_the_programs_and_plain_release_refuses(world: World) -> None:
    program, allocation = world.running("sh", "-c", "trap '' TERM; cat", memory_mib=1000)
    with pytest.raises(CalabashError) as caught:
        world.client.delete(f"/v1/allocations/{allocation['id']}")
    assert caught.value.reason is Reason.CONFLICT
    begun = time.monotonic()
    freed = world.client.delete(f"/v1/allocations/{allocation['id']}?force=1")
    assert time.monotonic() - begun > 3, "it had the time to end by itself"
    assert freed == {"id": allocation["id"], "state": "released"}
    assert not program.alive()
    assert world.allocations() == []
    assert world.allocations(ended=True)[-1]["reason"] == "released"


def test_a_program_may_give_its_own_slice_back_without_being_killed_for_it(world: World) -> None:
    code = (
        "import sys, pathlib; from calabash.adapters.pool.client import PoolClient;"
        "from calabash.api import endpoints;"
        "pool = PoolClient(pathlib.Path(sys.argv[1]));"
        "(name,) = (one['id'] for one in pool.items(endpoints.LIST_ALLOCATIONS));"
        "pool.send(endpoints.RELEASE, name); print('given back', flush=True); sys.stdin.read(); sys.exit(7)"
    )
    program = world.run(sys.executable, "-c", code, str(world.home), memory_mib=1000)
    until(lambda: program.says("given back"), what="the release to be answered")
    assert program.alive()
    assert len(world.allocations()) == 1, "it is held until its last process is gone"
    assert program.finish() == 7
    until(lambda: not world.allocations(), what="the slice to come back")
    assert world.allocations(ended=True)[-1]["reason"] == "released"


def test_what_a_whole_card_does_is_shown_and_metered_from_outside(world: World, hold: str) -> None:
    program, _ = world.running(hold, "3000", "100", mode="exclusive")
    until(lambda: program.says("held 3000"))
    until(lambda: world.allocations()[0]["slices"][0]["memory_used_mib"] >= 3000, what="its memory to be shown")


def test_the_database_url_can_be_told_on_standard_input(make_world: Callable[..., World]) -> None:
    world = make_world()
    other = world.home / "elsewhere.db"
    command = [*world.command(), "--db", "-"]
    with subprocess.Popen(command, env=world.environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
        world.daemon = daemon
        assert daemon.stdin is not None
        daemon.stdin.write(f"sqlite:///{other}\n".encode())
        daemon.stdin.close()
        assert world.ready()["db"] == f"sqlite:///{other}"
        daemon.terminate()
    assert other.exists()
    assert not (world.home / "pool.db").exists()


def test_a_second_pool_on_the_same_home_is_refused_with_the_pid_of_the_first(world: World) -> None:
    second = subprocess.run(
        world.command(), env=world.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert "error [pool_running]" in second.stderr
    assert world.daemon is not None
    assert str(world.daemon.pid) in second.stderr
    assert "hint: " in second.stderr
    assert world.client.get("/v1/status")["pid"] == world.daemon.pid


def test_sigterm_stops_the_pool_and_leaves_programs_and_limits_alone(world: World) -> None:
    program, allocation = world.running(memory_mib=1000, cores=10)
    world.kill(signal.SIGTERM)
    assert not (world.home / "pool.sock").exists()
    assert program.alive()
    assert world.slots() == [allocation["id"]]
    world.up()
    again = until(lambda: world.allocation_of(program), what="the pool to know it again")
    assert (again["id"], again["slices"][0]["memory_mib"]) == (allocation["id"], 1000)
    program.finish()
    until(lambda: not world.allocations(), what="the slice to come back")


def test_down_is_refused_while_programs_run_unless_forced(world: World) -> None:
    program, _ = world.running(memory_mib=1000)
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/shutdown", {"force": False})
    assert caught.value.reason is Reason.CONFLICT
    assert world.client.get("/v1/status")["allocations"] == 1
    world.client.post("/v1/shutdown", {"force": True}, timeout_s=60)
    until(program.dead, what="the program to be ended")
    assert world.daemon is not None
    assert world.daemon.wait(timeout=60) == 0
    assert world.slots() == []


def test_the_arbiter_is_started_again_when_it_dies_and_goes_with_the_pool(world: World) -> None:
    first = until(lambda: world.client.get("/v1/status")["arbiter_pid"], what="an arbiter")
    os.kill(first, signal.SIGKILL)
    second = until(
        lambda: (p := world.client.get("/v1/status")["arbiter_pid"]) not in (0, first) and p, what="another arbiter"
    )
    world.kill()
    until(lambda: identify(second) is None, what="the arbiter to go")


def test_a_user_may_release_only_what_is_his_own(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    _, allocation = world.running(memory_mib=1000)
    path = f"/v1/allocations/{allocation['id']}"
    for directory in (world.home, *world.home.parents):
        if directory.is_relative_to(tempfile.gettempdir()) and directory != Path(tempfile.gettempdir()):
            directory.chmod(0o755)

    def as_nobody() -> None:
        pool = world.client
        calls: list[Callable[[], Any]] = [
            lambda: pool.delete(path + "?force=1"),
            lambda: pool.post("/v1/shutdown", {"force": True}),
            lambda: pool.put("/v1/queues/x", {}),
            lambda: pool.post(path + "/started", {"pid": 1}),
        ]
        for call in calls:
            with pytest.raises(CalabashError) as caught:
                call()
            # the existence of another user's object is not revealed
            assert caught.value.reason in {Reason.NOT_PERMITTED, Reason.NOT_FOUND}
        granted = pool.post("/v1/allocations", {"memory_mib": 500})
        slot = Path(granted["slot"])
        assert os.access(slot / "usage", os.R_OK | os.W_OK, effective_ids=True)
        assert (slot / "usage").stat().st_uid == 0
        assert not os.access(slot / "limits", os.W_OK)
        assert not os.access(slot, os.W_OK)
        pool.delete(f"/v1/allocations/{granted['id']}")

    assert _in_child(as_nobody) == ""
    assert [a["id"] for a in world.allocations()] == [allocation["id"]]


def _in_child(action: Callable[[], None]) -> str:
    """Run an action in a child process as nobody; return its error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            action()
        except BaseException as error:
            os.write(writing, repr(error).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        message = pipe.read().decode()
    os.waitpid(pid, 0)
    return message


def test_the_peer_is_what_the_kernel_says_and_not_what_the_request_says(world: World) -> None:
    answer = _raw(
        world,
        b"POST /v1/allocations HTTP/1.1\r\nHost: x\r\nX-Uid: 4711\r\nContent-Length: 29\r\n\r\n"
        b'{"memory_mib":500,"uid":4711}',
    )
    assert b"400" in answer.split(b"\r\n")[0]
    granted = world.client.post("/v1/allocations", {"memory_mib": 500})
    shown = next(a for a in world.allocations() if a["id"] == granted["id"])
    assert shown["uid"] == os.geteuid()


def _raw(world: World, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(world.home / "pool.sock"))
        connection.sendall(data)
        return connection.recv(1 << 16)


def test_queues_are_kept_and_limit_who_gets_what(world: World) -> None:
    world.client.put("/v1/queues/research", {"deserved": 0.5, "limit": 1})
    _, first = world.running(mode="exclusive", queue="research")
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/allocations", {"mode": "exclusive", "queue": "research"})
    assert caught.value.reason is Reason.QUEUE_OVER_LIMIT
    shown = {q["name"]: q for q in world.client.get("/v1/queues")["items"]}
    assert shown["research"]["allocated"] == 1.0
    assert shown["research"]["limit"] == 1.0
    assert "default" in shown
    with pytest.raises(CalabashError) as caught:
        world.client.delete("/v1/queues/research")
    assert caught.value.reason is Reason.CONFLICT
    world.kill()
    world.up()
    shown = {q["name"]: q for q in world.client.get("/v1/queues")["items"]}
    assert shown["research"]["allocated"] == 1.0
    assert first["queue"] == "research"


def test_a_gang_starts_together_or_not_at_all(world: World) -> None:
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/allocations", {"mode": "exclusive", "gang": "g", "gang_size": 2})
    assert caught.value.reason is Reason.GANG_INCOMPLETE
    first = world.run(mode="exclusive", gang="g", gang_size=2, wait_s=60)
    until(lambda: any(a["state"] == "pending" for a in world.allocations()), what="the first to wait")
    assert world.allocations()[0]["reason"] == "gang_incomplete"
    second = world.run(mode="exclusive", gang="g", gang_size=2, wait_s=60)
    until(lambda: world.allocation_of(first) and world.allocation_of(second), what="both to run")


def test_a_queue_takes_back_what_it_deserves_from_who_borrowed_it(world: World) -> None:
    world.client.put("/v1/queues/prod", {"deserved": 1})
    world.client.put("/v1/queues/lab", {"deserved": 1})
    borrowers = [world.run(mode="exclusive", queue="lab") for _ in range(2)]
    until(lambda: all(world.allocation_of(b) for b in borrowers), what="both to run")
    owner = world.run(mode="exclusive", queue="prod", wait_s=30)
    until(lambda: sum(b.alive() for b in borrowers) == 1, what="one borrower to be ended")
    until(lambda: world.allocation_of(owner), what="the owner to run")
    evicted = [a for a in world.allocations(ended=True) if (a["state"], a["queue"]) == ("released", "lab")]
    assert [a["reason"] for a in evicted] == ["reclaim"]


def test_a_lost_card_takes_no_work_and_comes_back_when_it_answers(world: World) -> None:
    _, allocation = world.running(memory_mib=1000)
    card = allocation["slices"][0]["device_index"]
    world.inject(str(card), "lost")
    until(lambda: world.devices()[card]["health"] == "lost", what="the card to be lost")
    told = until(lambda: world.events("device_unhealthy"), what="its tenant to be told")
    assert told[-1]["allocation"] == allocation["id"]
    assert world.allocations()[0]["reason"] == "unhealthy"
    _, other = world.running(memory_mib=1000)
    assert other["slices"][0]["device_index"] != card
    world.inject(str(card), "recover")
    until(lambda: world.devices()[card]["health"] == "healthy", what="the card to come back")


def test_a_card_with_a_double_bit_error_is_drained_and_is_reset_and_returns_after_a_test(world: World) -> None:
    program, allocation = world.running(memory_mib=1000)
    card = allocation["slices"][0]["device_index"]
    world.inject(str(card), "ecc-double")
    until(lambda: world.devices()[card]["health"] == "draining", what="the card to drain")
    assert program.alive()
    program.finish()
    until(lambda: world.devices()[card]["health"] == "healthy", what="the card to come back")
    for message in ("draining -> recovering", "a test passed"):
        until(partial(_happened, world, message), what=f"the event {message!r}")


def _happened(world: World, message: str) -> bool:
    return any(message in event["message"] for event in world.events("health"))


def test_a_program_fault_does_not_take_the_card_away(world: World) -> None:
    world.inject("0", "xid", "31")
    until(lambda: any("XID 31" in e["message"] for e in world.events("health")), what="the event")
    assert world.devices()[0]["health"] == "healthy"


def test_usage_is_metered_per_allocation(world: World) -> None:
    begun = time.monotonic()
    program, allocation = world.running(memory_mib=1024, cores=50)
    time.sleep(0.3)  # the least time that is metered
    program.finish()
    until(lambda: not world.allocations())
    at_most = time.monotonic() - begun + 0.1  # it is metered by another clock
    world.kill(signal.SIGTERM)
    from calabash.adapters.store import open_store

    store = open_store(f"sqlite:///{world.home}/pool.db")
    records = store.usage(allocation["id"])
    store.close()
    assert len(records) == 1
    elapsed = records[0].to_s - records[0].from_s
    assert 0.3 <= elapsed <= at_most
    assert records[0].allocated_gpu_s == pytest.approx(elapsed * 0.5)
    assert records[0].memory_mib_s == pytest.approx(elapsed * 1024)
