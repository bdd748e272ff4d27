"""Jobs of the pool: they run in slices as the accounts of their users, are limited in number, and survive the pool's end."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.test_pool_users import refusal_of
from tests.daemons.users import ANN, BOB, EVE, as_user, open_way
from tests.daemons.world import World, until

from calabash.adapters.host.processes import Process, alive, identify
from calabash.model.errors import CalabashError, Reason

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

TEXT = "[jobs]\nleast_user = 1\nper_user = 3\nkept = 2\n"
SLICE: dict[str, Any] = {"memory_mib": 100, "cores": 5}


@pytest.fixture(scope="module")
def shared_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("jobs")
    world = World(directory / "home", "1xA100-40GB")
    world.home.mkdir(exist_ok=True)
    (world.home / "pool.toml").write_text(TEXT)
    world.environment["POOLS_SECRET"] = "not for jobs"
    world.up()
    open_way(world.home)
    yield world
    world.close()


@pytest.fixture
def pool(shared_pool: World) -> Iterator[World]:
    """Yield the shared pool without jobs; delete the jobs of the test afterwards."""
    yield shared_pool
    for program in shared_pool.programs:
        program.close()
    shared_pool.programs.clear()
    for job in jobs(shared_pool):
        until(partial(_forgotten, shared_pool, job["id"]), what=f"{job['id']} to be forgotten")
    until(lambda: not shared_pool.allocations(), what="the pool to be empty")


def _forgotten(world: World, name: str) -> bool:
    state: str = world.client.delete(f"/v1/jobs/{name}")["state"]
    return state == "forgotten"


def jobs(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.client.get("/v1/jobs")["items"]
    return found


def start(world: World, *command: str, user: Any = ANN, **body: Any) -> str:
    name: str = as_user(user, lambda: world.client.post("/v1/jobs", {"command": command, **SLICE, **body}))["job"]["id"]
    return name


def ended(world: World, name: str) -> dict[str, Any]:
    """Wait for the end of a job; return it with its output."""

    def over() -> Any:
        found = world.client.get(f"/v1/jobs/{name}")
        return found if found["job"]["state"] not in {"waiting", "running"} else None

    found: dict[str, Any] = until(over, what=f"{name} to be over")
    return found


def running(world: World, name: str, said: str = "") -> dict[str, Any]:
    def runs() -> Any:
        found = world.client.get(f"/v1/jobs/{name}")
        assert found["job"]["state"] in {"waiting", "running"}, found
        return found["job"] if found["job"]["state"] == "running" and said in found["output"] else None

    found: dict[str, Any] = until(runs, what=f"{name} to run and say {said!r}")
    return found


def test_a_job_runs_as_its_account_in_a_slice_with_a_clean_environment(pool: World) -> None:
    script = "id -u; id -G; pwd; env; grep NoNewPrivs /proc/self/status; ls -l /proc/self/fd; exit 7"
    name = start(pool, "sh", "-c", script, directory="/tmp")
    found = ended(pool, name)
    job, lines = found["job"], found["output"].splitlines()
    assert (job["state"], job["exit_code"], job["user"], job["tenant"]) == ("ended", 7, ANN.name, ANN.name), found
    assert lines[0] == str(ANN.uid)
    assert "0" not in lines[1].split(), "none of root's groups"
    assert lines[2] == "/tmp"
    names = {line.partition("=")[0] for line in lines[3:] if "=" in line}
    assert {"HOME", "USER", "PATH"} < names
    assert "POOLS_SECRET" not in names
    assert any(name.startswith("CALABASH_") for name in names), "what leads it to its slice"
    assert "NoNewPrivs:\t1" in lines
    assert sum(" -> " in line for line in lines) == 4, "its three descriptors, and ls's own of the directory"
    assert any(a["id"] == job["allocation"] and a["user"] == ANN.name for a in pool.allocations(ended=True))


def test_words_are_the_programs_own_and_no_shell_reads_them(pool: World) -> None:
    found = ended(pool, start(pool, "printf", "%s|", "$HOME", "; id", "a b", "`id`"))
    assert found["output"] == "$HOME|; id|a b|`id`|"
    assert ended(pool, start(pool, "no-such-program"))["job"]["exit_code"] == 127


def test_only_the_last_of_what_it_says_is_kept(pool: World) -> None:
    found = ended(pool, start(pool, "sh", "-c", "yes 0123456789 | head -c 300000; echo the end"))
    assert len(found["output"]) == 64 << 10
    assert found["output"].endswith("the end\n")
    assert found["output_bytes_before"] == 300_008 - (64 << 10)
    assert all(p.stat().st_size <= 64 << 10 and p.stat().st_mode & 0o77 == 0 for p in (pool.home / "jobs").iterdir())


def test_what_it_cannot_have_is_said(pool: World) -> None:
    where = ended(pool, start(pool, "id", directory="/root/secrets"))["job"]
    assert (where["state"], where["exit_code"], "directory /root/secrets" in where["message"]) == ("failed", None, True)
    much = ended(pool, start(pool, "id", memory_mib=90_000))["job"]
    assert (much["state"], bool(much["message"]), bool(much["reason"])) == ("failed", True, True)


def test_orders_that_make_no_sense_are_refused(pool: World) -> None:
    bodies: list[dict[str, Any]] = [
        {"command": []},
        {"command": [""]},
        {"command": ["id", "a\0b"]},
        {"command": ["id"], "directory": "../etc"},
        {"command": ["id"], "directory": "/tmp/\0"},
        {"command": ["x"] * 300},
        {"command": ["id"], "standing": True},
        {"command": ["id"], "enter": True},
        {"command": ["id"], "uid": 0},
        {"command": ["id"], "environment": {"LD_PRELOAD": "/tmp/x.so"}},
    ]
    for body in bodies:
        told = as_user(ANN, partial(_refused, pool, body))
        assert told.reason is Reason.BAD_REQUEST, body
    assert jobs(pool) == []


def _refusal(world: World, method: str, path: str) -> CalabashError:
    return refusal_of(lambda: world.client.call(method, path))


def _refused(world: World, body: dict[str, Any]) -> CalabashError:
    return refusal_of(lambda: world.client.post("/v1/jobs", body))


def test_nothing_runs_as_root_and_nothing_as_an_account_of_the_systems(make_world: Callable[..., World]) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    open_way(world.home)
    as_root = refusal_of(lambda: world.client.post("/v1/jobs", {"command": ["id"], **SLICE}))
    assert (as_root.reason, "never runs as root" in as_root.message) == (Reason.NOT_PERMITTED, True)
    system = as_user(ANN, lambda: refusal_of(lambda: world.client.post("/v1/jobs", {"command": ["id"], **SLICE})))
    assert (system.reason, "one of the system's" in system.message) == (Reason.NOT_PERMITTED, True)
    with world.home.joinpath("pool.toml").open("w") as file:
        file.write("[jobs]\nenabled = false\n")
    world.kill()
    world.up()
    off = as_user(EVE, lambda: refusal_of(lambda: world.client.post("/v1/jobs", {"command": ["id"], **SLICE})))
    assert "runs no jobs" in off.message


def test_a_token_runs_jobs_as_the_account_of_its_user_alone(pool: World) -> None:
    pool.client.put("/v1/users/mallory", {"login": EVE.name})
    pool.client.put("/v1/users/ghost", {})
    secrets = [pool.client.post("/v1/tokens", {"user": user})["secret"] for user in ("mallory", "ghost")]
    assert [_with_token(pool, secret) for secret in secrets] == [201, 403], "who has no account has nothing to run as"
    (job,) = jobs(pool)
    assert ended(pool, job["id"])["job"]["user"] == "mallory"
    (held,) = [a for a in pool.allocations(ended=True) if a["id"] == jobs(pool)[0]["allocation"]]
    assert held["user"] == "mallory"


def _with_token(world: World, secret: str, order: Any = None) -> int:
    data = json.dumps(order or {"command": ["true"], **SLICE}).encode()
    head = f"POST /v1/jobs HTTP/1.0\r\nAuthorization: Bearer {secret}\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(world.home / "pool.sock"))
        connection.sendall(head.encode() + data)
        return int(connection.recv(65536).split()[1])


def test_a_job_is_seen_and_stopped_by_those_who_may(pool: World) -> None:
    name = start(pool, "sh", "-c", "trap '' TERM; echo secret; setsid sleep 1000 & while :; do sleep 1; done")
    job = running(pool, name, "secret")
    pids = next(a["pids"] for a in pool.allocations() if a["id"] == job["allocation"])
    assert as_user(BOB, lambda: pool.client.get("/v1/jobs"))["items"] == []
    for method in ("GET", "DELETE"):
        told = as_user(BOB, partial(_refusal, pool, method, f"/v1/jobs/{name}"))
        assert told.reason is Reason.NOT_FOUND
    programs = [p for p in map(identify, pids) if p is not None]
    assert as_user(ANN, lambda: pool.client.delete(f"/v1/jobs/{name}"))["state"] == "stopping"
    assert ended(pool, name)["job"]["state"] == "stopped"
    until(lambda: not any(map(alive, programs)), what="all that it had started to be gone")
    until(lambda: not pool.allocations(), what="its slice to be free")
    assert pool.client.delete(f"/v1/jobs/{name}")["state"] == "forgotten"
    assert jobs(pool) == []
    assert list((pool.home / "jobs").iterdir()) == []


def test_it_waits_in_its_queue_and_is_withdrawn_when_it_is_stopped(pool: World) -> None:
    pool.running(mode="exclusive")
    name = start(pool, "id", gpus=1)
    waits = until(lambda: pool.client.get(f"/v1/jobs/{name}")["job"]["allocation"], what="its request to be known")
    assert [a["state"] for a in pool.allocations() if a["id"] == waits] == ["pending"]
    pool.client.delete(f"/v1/jobs/{name}")
    assert ended(pool, name)["job"]["state"] == "stopped"
    until(lambda: waits not in {a["id"] for a in pool.allocations()}, what="the request to be withdrawn")


def test_one_user_has_so_many_at_a_time_and_the_oldest_that_are_over_are_forgotten(pool: World) -> None:
    first = [start(pool, "sleep", "1000") for _ in range(3)]
    told = as_user(ANN, lambda: refusal_of(lambda: pool.client.post("/v1/jobs", {"command": ["id"], **SLICE})))
    assert told.reason is Reason.USER_LIMIT
    ended(pool, start(pool, "true", user=BOB))
    for name in first:
        pool.client.delete(f"/v1/jobs/{name}")
        ended(pool, name)
    last = start(pool, "true")
    ended(pool, last)
    assert {j["id"] for j in jobs(pool) if j["user"] == ANN.name} == {first[2], last}


def test_a_pool_that_is_killed_takes_no_job_with_it(pool: World, tmp_path: Path) -> None:
    open_way(tmp_path)
    go = tmp_path / "go"
    runs = start(pool, "sh", "-c", f"echo begun; until test -e {go}; do sleep 0.05; done; echo done; exit 3")
    job = running(pool, runs, "begun")
    waits = start(pool, "sh", "-c", "echo mine", mode="exclusive")
    until(lambda: pool.client.get(f"/v1/jobs/{waits}")["job"]["allocation"], what="the second to wait")
    pool.kill()
    pool.up()
    assert running(pool, runs)["allocation"] == job["allocation"]
    assert pool.client.get(f"/v1/jobs/{waits}")["job"]["state"] == "waiting"
    go.touch()
    found = ended(pool, runs)
    assert (found["job"]["exit_code"], found["output"]) == (3, "begun\ndone\n")
    assert ended(pool, waits)["output"] == "mine\n", "it has asked the new pool"


def test_a_job_whose_keeper_was_killed_is_lost_and_can_still_be_stopped(pool: World) -> None:
    name = start(pool, "sleep", "1000")
    job = running(pool, name)
    keeper, begun = json.loads((pool.home / "jobs" / f"{name}.facts").read_bytes())["keeper"]
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(Process(pid=keeper, start_time=begun)), what="its keeper to be gone")
    found = pool.client.get(f"/v1/jobs/{name}")["job"]
    assert (found["state"], "its program may still run" in found["hint"]) == ("lost", True)
    assert [a["id"] for a in pool.allocations()] == [job["allocation"]]
    assert pool.client.delete(f"/v1/jobs/{name}")["state"] == "stopping"
    until(lambda: not pool.allocations(), what="its slice to be free")
    assert pool.client.delete(f"/v1/jobs/{name}")["state"] == "forgotten"


def test_the_waiting_time_of_a_job_is_bounded_by_what_it_says(pool: World) -> None:
    pool.running(mode="exclusive")
    begun = time.monotonic()
    found = ended(pool, start(pool, "id", wait_s=0.2))["job"]
    assert (found["state"], found["reason"]) == ("failed", "timeout")
    assert time.monotonic() - begun >= 0.2
