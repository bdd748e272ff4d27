"""Mode mps on a real pool: shares that the MPS service enforces, faults that affect all its programs, and pool restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tests.daemons.world
from tests.daemons.users import ANN, open_way
from tests.daemons.world import NATIVE, Program, World, until
from tests.native.sim_cuda_programs import program

from calabash.adapters.host.processes import identify
from calabash.node.modes.mps.services import service_directory

A100_SMS = 108
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
CLIENT_TERMINATED = 810
LINGERS = """
import os, socket, sys
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.connect(os.environ["CALABASH_MPS_DOOR"])
print(door.recv(16).decode())
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def client() -> str:
    """Return the path of the MPS client program, which performs the commands that it reads from standard input."""
    return str(program("sim_mps_client"))


def mps(percent: int, memory_mib: int = 2048) -> dict[str, Any]:
    return {"mode": "mps", "cores": percent, "memory_mib": memory_mib}


def send(running: Program, line: str) -> None:
    os.write(running.stdin, line.encode() + b"\n")


def lines(running: Program) -> list[str]:
    running.says("")
    return running.output.decode().splitlines()


def ask(running: Program, line: str) -> list[str]:
    before = len(lines(running))
    send(running, line)
    until(lambda: len(lines(running)) > before, what=f"an answer to {line}")
    return lines(running)[before].split()


def ready(running: Program) -> int:
    """Return the number of multiprocessors that the program sees."""
    until(lambda: running.says("ready "), what="the program to be ready")
    word, result, sms = lines(running)[0].split()
    assert (word, result) == ("ready", "0"), lines(running)
    return int(sms)


def daemon_of(world: World) -> int:
    """Return the pid of the only running daemon."""

    def alone() -> int:
        """Return the pid of the daemon; 0 while daemons of earlier allocations are still ending."""
        written = service_directory(world.home).glob("*/pipe/nvidia-cuda-mps-control.pid")
        live = [pid for pid in (int(file.read_text() or 0) for file in written) if not has_ended(pid)]
        return live[0] if len(live) == 1 else 0

    return int(until(alone, what="one daemon to run"))


def at_daemon(pipe: Path, line: str) -> str:
    """Send a command to an MPS daemon with its control program; return the answer."""
    return subprocess.run(
        [NATIVE / "simgpu" / "nvidia-cuda-mps-control"],
        input=f"{line}\n",
        env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()


def events_of(world: World, kind: str, allocation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a kind that name one allocation."""
    return [event for event in world.events(kind) if event["allocation"] == allocation["id"]]


def has_ended(pid: int) -> bool:
    return identify(pid) is None


def test_three_tenants_have_unequal_shares_and_limits_that_hold(world: World, client: str) -> None:
    asked = {50: 4096, 30: 2048, 20: 1024}
    tenants = {percent: world.running(client, **mps(percent, mib))[0] for percent, mib in asked.items()}
    for percent, tenant in tenants.items():
        assert ready(tenant) == A100_SMS * percent // 100
    for percent, tenant in tenants.items():
        send(tenant, f"card {2 * percent} 10000000")  # two seconds, if all run at once and none waits for another
    until(lambda: all(len(lines(t)) == 2 for t in tenants.values()), what="all to have run")
    for percent, tenant in tenants.items():
        milliseconds = float(lines(tenant)[1].split()[0])
        assert 2 * percent * 10 * 100 / milliseconds == pytest.approx(percent, abs=2)
    for percent, mib in asked.items():
        assert ask(tenants[percent], f"alloc {mib // 4}") == ["0"]
        assert ask(tenants[percent], f"alloc {mib}") == [str(OUT_OF_MEMORY)]
    assert world.events("mps_unverified") == []
    assert world.events("stranger") == []
    assert world.events("under_reported") == []


def test_a_client_that_clears_its_environment_gets_the_smallest_share(world: World, client: str) -> None:
    world.running(client, **mps(20, 1024))
    names = ("LD_PRELOAD", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CALABASH_MPS_DOOR")
    bare = world.run("env", *(word for name in names for word in ("-u", name)), client, **mps(50, 4096))
    assert ready(bare) == A100_SMS * 20 // 100
    assert ask(bare, "alloc 1024") == [str(OUT_OF_MEMORY)]


def test_a_client_that_joins_out_of_order_while_a_larger_share_is_set_is_disconnected(
    world: World, client: str, tmp_path: Path
) -> None:
    lingers = tmp_path / "lingers.py"
    lingers.write_text(LINGERS)
    large, owner = world.running(sys.executable, "-u", str(lingers), **mps(60, 4096))
    until(lambda: large.says("go"), what="the share of the large one to be set")
    bare = world.run("env", "-u", "LD_PRELOAD", "-u", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", client, **mps(20, 1024))
    until(lambda: bare.says("ready "), what="the small one to slip in")
    large.finish()
    told = until(lambda: world.events("mps_slipped_in"), what="that to be told")
    assert owner["id"] in told[0]["message"]
    assert ask(bare, "call") == [str(CLIENT_TERMINATED)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's pool serves several users")
def test_tenants_of_several_users_share_one_server(world: World, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    become = tests.daemons.world._become

    def as_ann(home: Path, command: list[str], body: dict[str, Any]) -> None:
        os.setgroups([])
        os.setgid(ANN.gid)
        os.setuid(ANN.uid)
        become(home, command, body)

    open_way(world.home)
    own = world.running(client, **mps(30))[0]
    monkeypatch.setattr(tests.daemons.world, "_become", as_ann)
    anns = world.running(client, **mps(50))[0]
    assert (ready(own), ready(anns)) == (A100_SMS * 30 // 100, A100_SMS * 50 // 100)
    assert own.alive()


def test_an_illegal_access_is_reported_to_all_affected_clients_and_the_service_restarts(
    world: World, client: str
) -> None:
    culprit, one = world.running(client, **mps(30))
    victim, other = world.running(client, **mps(50))
    ready(culprit)
    ready(victim)
    assert ask(culprit, "fault") == [str(ILLEGAL_ADDRESS)]
    own = until(lambda: events_of(world, "mps_fault", one), what="the culprit to be told")[0]
    others = until(lambda: events_of(world, "mps_fault", other), what="the victim to be told")[0]
    assert f"allocation {one['id']} (process {culprit.pid})" in others["message"]
    assert ask(victim, "call") == [str(ILLEGAL_ADDRESS)]
    until(lambda: any(e["id"] > own["id"] for e in world.events("mps_back")), what="the service to be back")
    assert ready(world.running(client, **mps(20))[0]) == A100_SMS * 20 // 100  # while the two still live
    why = world.client.get(f"/v1/allocations/{other['id']}/why")
    assert any("a fatal fault of" in detail for detail in why["details"])


def test_who_leaves_at_once_after_a_fault_is_told_all_the_same(world: World, client: str) -> None:
    victim, other = world.running(client, **mps(50))
    culprit, one = world.running("sh", "-c", f"(echo fault; echo call) | {client}", **mps(30))
    ready(victim)
    until(lambda: ask(victim, "call") == [str(ILLEGAL_ADDRESS)], what="the fault to hit the victim")
    victim.kill()
    told = until(lambda: [e for e in world.events("mps_fault") if e["allocation"] == other["id"]], what="it to be told")
    assert f"allocation {one['id']}" in told[0]["message"]
    until(culprit.dead, what="the culprit to end")


def test_setting_changed_at_the_server_is_reset_and_reported(world: World, client: str) -> None:
    ready(world.running(client, **mps(20, 1024))[0])
    (pipe,) = service_directory(world.home).glob("*/pipe")
    server = at_daemon(pipe, "get_server_list")

    def told() -> bool:
        if any("gave 100%" in event["message"] for event in world.events("mended")):
            return True
        if at_daemon(pipe, f"get_active_thread_percentage {server}") != "100.0":  # a program's end resets it silently
            assert at_daemon(pipe, f"set_active_thread_percentage {server} 100") == "100.0"
        return False

    until(told, what="it to be told")
    until(lambda: at_daemon(pipe, f"get_active_thread_percentage {server}") == "20.0", what="it to be set back")
    bare = world.run("env", "-u", "LD_PRELOAD", "-u", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", client, **mps(50, 1024))
    assert ready(bare) == A100_SMS * 20 // 100


def test_programs_that_a_neighbours_fault_hits_are_signalled_where_they_asked_for_it(world: World, client: str) -> None:
    culprit, _ = world.running(client, **mps(30))
    victim, other = world.running(client, **mps(30), on_fault="SIGUSR1")
    spared, _ = world.running(client, **mps(30))
    for one in (culprit, victim, spared):
        ready(one)
    assert ask(culprit, "fault") == [str(ILLEGAL_ADDRESS)]
    until(victim.dead, what="the signal")
    assert victim.code == -signal.SIGUSR1
    until(lambda: events_of(world, "mps_fault", other), what="its user to be told of the fault")
    assert spared.alive()
    assert events_of(world, "device_unhealthy", other) == []  # the card and its service are unaffected


def test_a_dead_daemon_is_a_matter_of_its_cards_health_until_it_serves_again(world: World, client: str) -> None:
    tenant, allocation = world.running(client, **mps(40), on_fault="SIGUSR1")
    ready(tenant)
    os.kill(daemon_of(world), signal.SIGKILL)
    until(tenant.dead, what="the signal")
    assert tenant.code == -signal.SIGUSR1
    (told,) = until(lambda: events_of(world, "device_unhealthy", allocation), what="the tenant to be told")
    assert "(mps)" in told["message"]
    assert "the MPS daemon died" in told["message"]

    def steps() -> list[str]:
        found = [e["message"] for e in world.events("health") if "(mps)" in e["message"]]
        return [message.partition(" (mps)")[0] for message in found]

    wanted = ["healthy -> draining", "draining -> recovering", "recovering -> healthy"]
    until(lambda: steps() == wanted, what="the steps")
    device = world.client.get("/v1/devices")["items"][0]
    assert device["health"] == "healthy"


def test_a_daemon_that_dies_is_started_again_and_its_clients_are_told(world: World, client: str) -> None:
    tenant, allocation = world.running(client, **mps(40))
    ready(tenant)
    before = daemon_of(world)
    os.kill(before, signal.SIGKILL)
    died = until(lambda: events_of(world, "mps_daemon_died", allocation), what="its death to be told")[0]
    until(lambda: any(e["id"] > died["id"] for e in world.events("mps_back")), what="the service to be back")
    assert daemon_of(world) != before
    assert ready(world.running(client, **mps(40))[0]) == A100_SMS * 40 // 100


def test_the_service_ends_after_its_last_slice_and_other_modes_need_not_wait_for_that(
    world: World, client: str
) -> None:
    world.running(mode="exclusive")  # the other card
    for _ in range(3):
        tenant, _ = world.running(client, **mps(40), wait_s=60)
        ready(tenant)
        daemon = daemon_of(world)
        tenant.finish()
        first, second = (world.run(client, memory_mib=1024, cores=20, wait_s=60) for _ in range(2))
        assert ready(first) == ready(second) == A100_SMS  # several programs at once, without the service
        until(partial(has_ended, daemon), what="the daemon to end")
        first.finish()
        second.finish()


def test_a_pool_that_is_killed_leaves_the_service_to_the_next_one(
    make_world: Callable[..., World], client: str
) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    tenant, _ = world.running(client, **mps(60))
    ready(tenant)
    daemon = daemon_of(world)
    world.kill()
    assert ask(tenant, "call") == ["0"]
    world.up()
    until((service_directory(world.home) / "0/door/knock").exists, what="the door to open")
    assert ask(tenant, "call") == ["0"]
    assert daemon_of(world) == daemon
    assert ready(world.running(client, **mps(30))[0]) == A100_SMS * 30 // 100
    time.sleep(1.5)  # three polls of the census; on a slow machine there are fewer, which cannot fail the test
    assert world.events("stranger") == []
    world.kill()
    for one in world.programs:
        one.close()
    world.programs.clear()
    world.up()
    until(partial(has_ended, daemon), what="the daemon that nobody needs to end")
    until(lambda: not (world.home / "mps.json").exists(), what="nothing to be written of it")


def test_a_pool_that_is_killed_before_it_wrote_its_daemon_down_leaves_it_to_the_next_one(
    make_world: Callable[..., World], client: str
) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    tenant, _ = world.running(client, **mps(60))
    ready(tenant)
    daemon = daemon_of(world)
    world.kill()
    (world.home / "mps.json").unlink()
    world.up()
    until((service_directory(world.home) / "0/door/knock").exists, what="the door to open")
    assert ready(world.running(client, **mps(30))[0]) == A100_SMS * 30 // 100
    assert ask(tenant, "call") == ["0"]
    assert daemon_of(world) == daemon
    assert world.events("mps_daemon_died") == world.events("stranger") == []


def test_a_server_whose_daemon_and_pool_have_died_keeps_nobody_from_its_card(
    make_world: Callable[..., World], client: str
) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    tenant, _ = world.running(client, **mps(60))
    ready(tenant)
    (pipe,) = service_directory(world.home).glob("*/pipe")
    server, daemon = int(at_daemon(pipe, "get_server_list")), daemon_of(world)
    world.kill()
    os.kill(daemon, signal.SIGKILL)
    until(partial(has_ended, daemon), what="the daemon to be gone")
    world.up()
    until(partial(has_ended, server), what="the server that serves nobody to end")
    tenant.kill()
    assert ready(world.running(client, wait_s=60, **mps(30))[0]) == A100_SMS * 30 // 100
    assert world.events("stranger") == []


@pytest.mark.parametrize("asked", [{"gpus": 2}, {"policy": "burst"}], ids=["two", "burst"])
def test_what_the_service_cannot_do_is_refused_with_the_reason(
    world: World, client: str, asked: dict[str, Any]
) -> None:
    refused = world.run(client, mode="mps", cores=20, **asked)
    until(refused.dead, what="the refusal")
    assert refused.says("refused mode_conflict"), refused.output
