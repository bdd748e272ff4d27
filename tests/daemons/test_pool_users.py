"""Pool and other users of the machine: attacks by real users, which must not affect another tenant."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.users import ANN, BOB, EVE, as_user, open_way
from tests.daemons.world import World, until

from calabash.model.errors import CalabashError, Reason

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    """Return a function that makes pools in a directory that other users can enter, unlike the directories of pytest."""
    directory = Path(tempfile.mkdtemp(prefix="calabash-"))
    made: list[World] = []

    def make(gpus: str = "2xA100-40GB") -> World:
        made.append(World(directory / f"home{len(made)}", gpus))
        return made[-1]

    yield make
    for world in made:
        world.close()
    shutil.rmtree(directory)


@pytest.fixture
def pool(world: World) -> World:
    """Yield the shared pool, with its socket reachable by other users."""
    open_way(world.home)
    return world


def refusal_of(call: Callable[[], Any]) -> CalabashError:
    try:
        call()
    except CalabashError as error:
        return error
    raise AssertionError("it was not refused")


def settings(world: World, text: str) -> None:
    world.home.mkdir(exist_ok=True)
    (world.home / "pool.toml").write_text(text)


# -- files of the home ---------------------------------------------------------------------------------------------


def test_no_file_of_the_home_can_be_opened_and_so_none_can_be_locked(make_world: Callable[..., World]) -> None:
    world = make_world("1xA100-40GB")
    world.home.mkdir(exist_ok=True)
    for name in ("pool.db", "pool.lock", "pool.log"):
        (world.home / name).touch(mode=0o666)
        (world.home / name).chmod(0o666)  # as an earlier version or a mistake left them
    before = os.umask(0)
    try:
        world.up()
    finally:
        os.umask(before)
    world.client.delete(f"/v1/allocations/{world.client.post('/v1/allocations', {'memory_mib': 100})['id']}")
    open_way(world.home.parent)
    assert world.home.stat().st_mode & 0o777 == 0o711

    def attack() -> list[str]:
        opened = []
        for name in ("pool.db", "pool.db-wal", "pool.db-shm", "pool.lock", "pool.log", "pool.sock", "."):
            try:
                descriptor = os.open(world.home / name, os.O_RDONLY)
            except OSError:
                continue
            opened.append(name)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(descriptor)
        return opened

    assert {p.name for p in world.home.iterdir()} >= {"pool.db", "pool.db-wal", "pool.db-shm", "pool.lock", "pool.log"}
    assert as_user(EVE, attack) == []
    assert as_user(ANN, lambda: world.client.post("/v1/allocations", {"memory_mib": 100})["mode"]) == "vgpu"


# -- queues and tenants --------------------------------------------------------------------------------------------


def test_a_queue_with_a_guarantee_is_for_those_on_its_access_list(pool: World) -> None:
    pool.client.put("/v1/queues/prod", {"deserved": 2, "users": [ANN.name]})
    lent, _ = pool.running(mode="exclusive")
    told = as_user(EVE, lambda: refusal_of(lambda: pool.client.post("/v1/allocations", {"queue": "prod", "gpus": 2})))
    assert told.reason is Reason.NOT_PERMITTED
    assert "queue prod" in told.message
    assert told.hint
    assert lent.alive(), "nobody's program is ended for a queue that its attacker may not use"
    granted = as_user(ANN, lambda: pool.client.post("/v1/allocations", {"queue": "prod", "memory_mib": 100}))
    assert granted["slices"]


def test_a_member_of_a_listed_group_may_use_the_queue(pool: World) -> None:
    pool.client.put("/v1/queues/team", {"groups": [BOB.group]})
    assert as_user(BOB, lambda: pool.client.post("/v1/allocations", {"queue": "team", "memory_mib": 100}))["slices"]
    told = as_user(ANN, lambda: refusal_of(lambda: pool.client.post("/v1/allocations", {"queue": "team"})))
    assert told.reason is Reason.NOT_PERMITTED


def test_a_slice_is_on_the_account_of_its_user_unless_another_tenant_lists_him(pool: World) -> None:
    def ask(**body: Any) -> Any:
        return pool.client.post("/v1/allocations", {"memory_mib": 100, "cores": 10, **body})

    own = as_user(ANN, ask)
    named = as_user(ANN, lambda: ask(tenant=ANN.name))
    told = as_user(ANN, lambda: refusal_of(lambda: ask(tenant=BOB.name)))
    assert told.reason is Reason.NOT_PERMITTED
    shown = {a["id"]: a["tenant"] for a in pool.allocations(ended=True)}
    assert {shown[own["id"]], shown[named["id"]]} == {ANN.name}
    pool.client.put("/v1/tenants/vision", {"users": [ANN.name]})
    listed = as_user(ANN, lambda: ask(tenant="vision"))
    assert {a["id"]: a["tenant"] for a in pool.allocations(ended=True)}[listed["id"]] == "vision"
    assert as_user(BOB, lambda: refusal_of(lambda: ask(tenant="vision"))).reason is Reason.NOT_PERMITTED
    program, held = pool.running("cat", tenant="vision", memory_mib=100, wait_s=50)  # until the others wait again
    assert refusal_of(lambda: pool.client.delete("/v1/tenants/vision")).reason is Reason.CONFLICT
    program.finish()
    until(
        lambda: {a["id"] for a in pool.allocations()}.isdisjoint({held["id"], listed["id"]}),
        what="its slices to be back",
    )
    pool.client.delete("/v1/tenants/vision")


def test_only_administrators_set_queues_and_tenants(pool: World) -> None:
    for path in ("/v1/queues/mine", "/v1/tenants/mine"):
        for call in (partial(pool.client.put, path, {}), partial(pool.client.delete, path)):
            assert as_user(EVE, partial(refusal_of, call)).reason is Reason.NOT_PERMITTED


def test_only_administrators_take_cards_out_of_service_and_everybody_sees_them(pool: World) -> None:
    for verb in ("drain", "undrain", "test", "reset"):
        call = partial(pool.client.post, f"/v1/devices/0/{verb}")
        assert as_user(EVE, partial(refusal_of, call)).reason is Reason.NOT_PERMITTED
    shown = as_user(EVE, lambda: pool.client.get("/v1/devices/0"))
    assert (shown["device"]["health"], shown["drained"]) == ("healthy", False)


def test_gangs_of_two_users_with_one_name_are_two(pool: World) -> None:
    body = {"mode": "exclusive", "gang": "g", "gang_size": 2, "wait_s": 1.0}
    answers: list[Reason] = []

    def ask(user: Any) -> None:
        told = as_user(user, lambda: refusal_of(lambda: pool.client.post("/v1/allocations", body)))
        answers.append(told.reason)

    threads = [threading.Thread(target=ask, args=(user,)) for user in (ANN, EVE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [Reason.TIMEOUT] * 2, "neither fills the other's gang"


# -- access to the socket ------------------------------------------------------------------------------------------


def test_a_pool_of_root_serves_everybody_and_says_so(pool: World) -> None:
    status = pool.client.get("/v1/status")
    assert (status["membership"], status["serves"]) == ("kernel", "every user")


# -- many requests of one user -------------------------------------------------------------------------------------


def test_a_user_has_at_most_so_many_waiting_requests(make_world: Callable[..., World]) -> None:
    world = make_world("1xA100-40GB")
    settings(world, "[user]\nwaiting = 3\n")
    world.up()
    open_way(world.home)
    world.running(mode="exclusive")
    body = {"memory_mib": 100, "wait_s": 20}

    def crowd() -> str:
        threads = [
            threading.Thread(target=lambda: refusal_of(lambda: world.client.post("/v1/allocations", body)), daemon=True)
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        until(lambda: sum(a["state"] == "pending" for a in world.allocations()) == 3, what="three to wait")
        return refusal_of(lambda: world.client.post("/v1/allocations", body)).reason

    assert as_user(EVE, crowd) == Reason.USER_LIMIT


# -- connections ---------------------------------------------------------------------------------------------------


def test_a_request_that_is_never_finished_is_hung_up_on(pool: World) -> None:
    with contextlib.ExitStack() as stack:
        held = []
        for begun in (b"", b"GET /v1/sta", b"POST /v1/allocations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"):
            held.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            held[-1].settimeout(60)
            held[-1].connect(str(pool.home / "pool.sock"))
            held[-1].sendall(begun)
        for connection in held:  # a connection that stays open reaches its own time limit
            while connection.recv(4096):
                pass


def test_replies_that_nobody_reads_cost_little_memory_and_end(make_world: Callable[..., World]) -> None:
    world = make_world("1xA100-40GB")
    settings(world, "[journal]\nevents = 1000000\n")
    world.up()
    open_way(world.home)
    assert world.daemon is not None
    for _ in range(60):
        refusal_of(
            lambda: world.client.post("/v1/allocations", {"models": ["none of these"], "command": ["x" * 20_000]})
        )
    for _ in range(50):
        granted = world.client.post("/v1/allocations", {"memory_mib": 100, "command": ["x" * 60_000]})
        world.client.delete(f"/v1/allocations/{granted['id']}?force=1")
    status = Path(f"/proc/{world.daemon.pid}/status")

    def resident_kib() -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmRSS")).split()[1])

    before = resident_kib()

    def attack() -> int:
        kept = []
        for _ in range(300):
            connection = socket.socket(socket.AF_UNIX)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.connect(str(world.home / "pool.sock"))
            connection.sendall(b"GET /v1/allocations?all=1 HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
            kept.append(connection)
        time.sleep(3)  # the pool has this long to build replies; a slow one builds fewer, which cannot fail the test
        return len(kept)

    assert as_user(EVE, attack) == 300
    assert resident_kib() - before < 64 << 10
    assert as_user(ANN, lambda: world.client.get("/v1/status"))["devices"] == 1


def test_a_log_that_a_user_fills_stays_small_and_says_what_it_left_out(make_world: Callable[..., World]) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    open_way(world.home)
    log = world.home / "pool.log"
    before = log.stat().st_size

    def attack() -> None:
        for _ in range(50):
            granted = world.client.post("/v1/allocations", {"memory_mib": 100})
            world.client.delete(f"/v1/allocations/{granted['id']}?force=1")
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(world.home / "pool.sock"))
                connection.sendall(b"\x00nonsense\r\n\r\n" * 20)
                connection.recv(4096)

    def is_told() -> bool:
        as_user(EVE, attack)
        return "lines in the last 10s" in log.read_text()

    until(is_told, what="the number of lines that were left out")
    world.client.delete(f"/v1/allocations/{world.client.post('/v1/allocations', {'memory_mib': 100})['id']}")
    assert log.stat().st_size - before < 100_000


# -- release -------------------------------------------------------------------------------------------------------


def test_a_release_frees_whatever_the_program_did_with_its_descriptors(pool: World) -> None:
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('here', flush=True);"
        "os.fork() or (os.setsid(), os.closerange(0, 1024), time.sleep(600)); time.sleep(600)"
    )
    program, allocation = pool.running("/usr/bin/python3", "-c", code, memory_mib=1000)
    until(lambda: program.says("here"))
    freed = pool.client.delete(f"/v1/allocations/{allocation['id']}?force=1")
    assert freed["state"] == "released"
    assert pool.allocations() == []
    assert all(d["memory_allocated_mib"] == 0 for d in pool.devices())


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"tenant": "ann\n"},
        {"queue": "default\n"},
        {"gang": "g\n", "gang_size": 2},
        {"mode": "vgpu\n"},
        {"queue": "a\x1b[2J"},
    ],
)
def test_a_name_with_control_characters_is_refused(pool: World, body: dict[str, Any]) -> None:
    told = refusal_of(lambda: pool.client.post("/v1/allocations", {"memory_mib": 100, **body}))
    assert told.reason is Reason.BAD_REQUEST


def test_a_queue_name_that_ends_in_a_newline_is_refused(pool: World) -> None:
    told = refusal_of(lambda: pool.client.put("/v1/queues/prod%0A", {}))
    assert told.reason is Reason.BAD_REQUEST


def test_bytes_that_are_no_text_are_refused_in_a_command(pool: World) -> None:
    told = refusal_of(lambda: pool.client.post("/v1/allocations", {"memory_mib": 100, "command": ["\udcff"]}))
    assert told.reason is Reason.BAD_REQUEST


# -- explanations --------------------------------------------------------------------------------------------------


def test_why_of_a_running_allocation_says_where_it_was_placed_and_why_there(pool: World) -> None:
    _, allocation = pool.running(memory_mib=1000, cores=10)
    why = pool.client.get(f"/v1/allocations/{allocation['id']}/why")
    card = allocation["slices"][0]["device_index"]
    assert why["state"] == "running"
    assert why["explanation"].startswith(f"device {card} (idle before): 2 of 2 devices had room, asked 1; policy ")
    assert len(why["details"]) == 1
    _, whole = pool.running(mode="exclusive")
    why = pool.client.get(f"/v1/allocations/{whole['id']}/why")
    assert "1 of 2 devices had room, asked 1; there was no other" in why["explanation"]
