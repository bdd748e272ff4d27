"""Isolation ``brokered`` on a real pool: environment of tenant and worker, limits, and every kind of end."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bench._lab import program
from tests.daemons.terminal import TENANT, Terminal
from tests.daemons.users import ANN, EVE, as_user, open_way
from tests.daemons.world import NATIVE, SIM, Program, World, until
from tests.native import remote_code_program
from tests.native import remote_greetings as hello

from calabash.adapters.gpu import sim
from calabash.adapters.host.processes import identify, owner
from calabash.model.units import MIB
from calabash.node.metering.checkpoint import LastRound

BROKERED: dict[str, Any] = {"isolation": "brokered", "memory_mib": 2048, "cores": 50}
KERNELS = Path(remote_code_program.__file__)  # a program that loads kernels, and reports the bytes that travelled
POINTS = 2.0  # tolerance of a share
KEEP_S = 15.0  # longer than a busy machine delays this process between two of its requests
ROOT = os.geteuid() == 0
# The simulated card replaces a kernel of that name without a body by its own, which lasts exactly as long as asked.
SPINNING = ".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns)\n{\n    ret;\n}\n"
needs_root = pytest.mark.skipif(not ROOT, reason="needs a pool of root")


@pytest.fixture
def pool(world: World) -> World:
    """Yield the shared pool, with its sockets reachable by other users."""
    open_way(world.home)
    return world


@pytest.fixture
def terminal(world: World, tmp_path: Path) -> Any:
    made = Terminal(world.home, tmp_path)
    yield made
    made.close()


def start_holder(world: World, hold: str, mib: int = 100, **body: Any) -> tuple[Program, dict[str, Any]]:
    """Start a program whose worker holds device memory; return the program and its allocation once it does."""
    tenant, _ = world.running(hold, str(mib), "10", **BROKERED | body)
    until(lambda: tenant.says("held"), what="the program to hold memory")
    found = world.allocation_of(tenant)
    assert found is not None
    return tenant, found


def workers(allocation: dict[str, Any], tenant: Program) -> list[int]:
    return [pid for pid in allocation["pids"] if pid != tenant.pid]


def host_of(allocation: dict[str, Any], tenant: Program) -> int:
    """Return the worker host of an allocation: the member process whose parent is not a member process."""
    members = workers(allocation, tenant)
    parents = {pid: int(status(pid)["PPid"]) for pid in members}
    (host,) = [pid for pid in members if parents[pid] not in members]
    return host


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def devices_of(world: World, pids: list[int]) -> list[sim.SimProcessDevice]:
    """Return the use of the device by these processes, as the simulated device has recorded it."""
    found = sim.show_node(sim.find_node(world.home, SIM)).processes
    return [device for process in found if process.pid in pids for device in process.devices]


def busy_ns(world: World, allocation: dict[str, Any]) -> int:
    pids = next(a["pids"] for a in world.allocations() if a["id"] == allocation["id"])
    return sum(device.busy_ns for device in devices_of(world, pids))


def has_ended(world: World, pids: list[int]) -> bool:
    return not world.allocations() and not world.slots() and not any(identify(pid) for pid in pids)


def nothing_is_left(world: World, pids: list[int]) -> None:
    """Wait until the allocation of these processes has ended and the directory of its worker is deleted."""
    until(lambda: has_ended(world, pids), what="the allocation to end")
    until(lambda: not list(world.home.glob("workers/*")), what="its directory to go")


def looked_at_s(world: World) -> float:
    """Return the time at which the pool last began to check all its allocations."""
    last = LastRound(world.home).read()
    return last.now_s if last is not None else 0.0


def metered_until_s(world: World, allocation: dict[str, Any]) -> float:
    with closing(sqlite3.connect(f"file:{world.home / 'pool.db'}?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT to_s FROM usage WHERE allocation = ?", [allocation["id"]])
        return max(float(to_s) for (to_s,) in rows)


# -- the tenant's side -----------------------------------------------------------------------------------------------


def test_a_program_has_a_library_and_a_socket_and_nothing_of_its_slice_or_its_node(terminal: Any) -> None:
    done = terminal("run", "--isolation", "brokered", "--memory", "2GiB", "--", "env")
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["CALABASH_REMOTE"].startswith("unix:/")
    assert seen["LD_LIBRARY_PATH"].split(":")[0].endswith("/remote")
    assert not {"LD_PRELOAD", "CALABASH_SLOT", "CALABASH_SIM"} & seen.keys()


def test_the_same_program_says_the_same_with_and_without_a_worker(terminal: Any) -> None:
    words = ("--memory", "2GiB", "--cores", "30", "--", sys.executable, str(TENANT), "--seconds", "0.3")
    own = json.loads(terminal("run", *words).stdout)
    brokered = json.loads(terminal("run", "--isolation", "brokered", *words).stdout)
    for said in (own, brokered):
        del said["launches"]
    assert brokered == own


def test_the_cap_is_the_workers_and_nothing_is_over_it(world: World, hold: str) -> None:
    plain = world.run(hold, "4000", "1", memory_mib=2048, cores=50)
    until(lambda: plain.says("held"), what="the plain program")
    brokered = world.run(hold, "4000", "1", **BROKERED)
    until(lambda: brokered.says("held"), what="the one with a worker")
    assert brokered.output.splitlines()[-1] == plain.output.splitlines()[-1]
    pids = workers(world.allocation_of(brokered) or {}, brokered)
    held = sum(d.alloc_peak_bytes + d.context_bytes for d in devices_of(world, pids))
    assert 0 < held <= 2048 * MIB


def test_worker_and_software_slice_have_at_most_their_shares_by_the_cards_accounts(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world("1xA100-40GB")
    world.up()
    terminal = Terminal(world.home, tmp_path)
    kernels = tmp_path / "kernels.ptx"
    kernels.write_text(SPINNING)
    load = ("--", str(program("gpuload")), "--kernels", str(kernels), "--kernel-us", "5000", "--depth", "8")
    for isolation, cores in (("cooperative", "30"), ("brokered", "70")):
        words = ("--isolation", isolation, "--memory", "2GiB", "--cores", cores)
        terminal.start("run", *words, *load, "--seconds", "300").close_input()

    def both() -> Any:
        found = sorted(world.allocations(), key=lambda a: str(a["mode"]))
        used = [a["slices"][0]["core_used_percent"] for a in found if a["slices"]]
        return found if len(used) == 2 and min(used) > 10 else None

    found = until(both, what="both to compute")
    assert [a["mode"] for a in found] == ["brokered", "vgpu"]
    assert world.devices()[0]["mode"] == "vgpu"

    def shares() -> list[float]:
        """Return the least percentage of the card that each can have had over two seconds."""
        begun_s, before = time.monotonic(), [busy_ns(world, a) for a in found]
        time.sleep(2)
        after, ended_s = [busy_ns(world, a) for a in found], time.monotonic()
        return [(end - begin) / (ended_s - begun_s) / 1e7 for begin, end in zip(before, after, strict=True)]

    def as_asked() -> bool:
        """Return True if both programs use most of their shares. They use less while they wait for a processor."""
        had = shares()
        assert had[0] <= 70 + POINTS
        assert had[1] <= 30 + POINTS
        return had[0] > 0.75 * 70 and had[1] > 0.75 * 30

    until(as_asked, what="two seconds in which both use most of their shares")

    def shown_percent() -> float:
        (brokered,) = [a for a in world.allocations() if a["mode"] == "brokered"]
        return float(brokered["slices"][0]["core_used_percent"])

    until(lambda: 45 < shown_percent() < 80, what="the pool to show the worker's use as its program's")
    (line,) = [row for row in terminal("top", "--once").stdout.splitlines() if found[0]["id"] in row]
    assert "2GiB" in line
    terminal.close()


def code_bytes(terminal: Any, *options: str) -> int:
    """Return the number of bytes that a brokered program sends to its worker to load its kernels.

    The driver library of the program counts them.
    """
    words = ("run", "--isolation", "brokered", *options, "--memory", "2GiB", "--cores", "30", "--")
    sent: int = json.loads(terminal(*words, sys.executable, str(KERNELS), "loaded").stdout)["load"]["image_bytes"]
    return sent


def test_the_second_start_of_a_tenants_program_sends_no_byte_of_code_also_after_a_restart(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world()
    world.up()
    terminal = Terminal(world.home, tmp_path)
    assert code_bytes(terminal) > 0
    assert code_bytes(terminal) == 0
    world.client.put("/v1/tenants/another", {})
    assert code_bytes(terminal, "--tenant", "another") > 0, "what one tenant has sent is not another's to ask for"
    world.kill()
    world.up()
    assert code_bytes(terminal) == 0
    kept = sorted((world.home / "images").iterdir())
    assert (world.home / "images").stat().st_mode & 0o777 == 0o700
    assert [(path.stat().st_uid, path.stat().st_mode & 0o777) for path in kept] == [(os.geteuid(), 0o600)] * 2
    for path in kept:
        path.write_bytes(os.urandom(path.stat().st_size))
    assert code_bytes(terminal) > 0, "a damaged file is not believed"
    assert code_bytes(terminal) == 0
    terminal.close()


# -- the worker's side -----------------------------------------------------------------------------------------------


@needs_root
def test_a_worker_is_a_user_of_its_own_without_rights_in_a_root_of_its_own(world: World, hold: str) -> None:
    first, one = start_holder(world, hold)
    second, two = start_holder(world, hold)
    users = set()
    for tenant, allocation in ((first, one), (second, two)):
        host = host_of(allocation, tenant)
        (worker,) = set(workers(allocation, tenant)) - {host}
        seen = status(worker)
        users.add(int(seen["Uid"].split()[0]))
        assert len(set(seen["Uid"].split() + seen["Gid"].split())) == 1
        assert (seen["Seccomp"], seen["NoNewPrivs"], seen["Groups"]) == ("2", "1", "")
        assert {seen[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
        assert set(os.listdir(f"/proc/{worker}/root")) <= {"dev", "etc", "lib", "lib64", "proc", "usr", *_top(world)}
        assert set(os.listdir(f"/proc/{worker}/root{world.home}")) == {"alloc", "sim"}
        assert os.listdir(f"/proc/{worker}/root{world.home}/alloc") == [world.slot_path(allocation["id"]).name]
        networks = Path(f"/proc/{worker}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in networks] == ["lo"]
        for kind in ("mnt", "net", "ipc"):
            assert os.readlink(f"/proc/{worker}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    assert len(users) == 2
    assert all(64_000 <= user <= 65_533 for user in users)


def test_the_memory_of_a_host_and_its_workers_is_closed_to_others_of_their_user(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    found = workers(allocation, tenant)
    assert len(found) == 2
    for pid in found:
        user = int(status(pid)["Uid"].split()[0])
        become: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if ROOT else {}
        for name in ("environ", "maps", "auxv"):
            read = subprocess.run(["cat", f"/proc/{pid}/{name}"], capture_output=True, check=False, **become)
            assert read.returncode, f"{name} of process {pid} is open to its user"
        assert "Max core file size        0                    0" in Path(f"/proc/{pid}/limits").read_text()


@needs_root
def test_two_pools_of_root_never_run_workers_as_the_same_user(world: World, make_world: Any, hold: str) -> None:
    other = make_world("1xA100-40GB")
    other.up()
    users = set()
    for pool_ in (world, other):
        tenant, allocation = start_holder(pool_, hold)
        users |= {int(status(pid)["Uid"].split()[0]) for pid in workers(allocation, tenant)}
    assert len(users) == 2


def _top(world: World) -> set[str]:
    return {world.home.parts[1], NATIVE.parts[1]}


@needs_root
def test_nobody_but_the_tenant_reaches_its_worker(pool: World) -> None:
    def ask() -> dict[str, Any]:
        found: dict[str, Any] = pool.client.post("/v1/allocations", BROKERED | {"enter": True})
        with hello.connect(Path(found["worker_socket"])):
            pass
        return found

    def knock(path: str) -> str:
        try:
            with hello.connect(Path(path)):
                return "let in"
        except OSError as error:
            return type(error).__name__

    keeper_says, keeper_hears = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = as_user(ANN, ask)  # the requesting process ends at once: that the allocation ends soon is checked below
        os.write(keeper_hears, found["worker_socket"].encode())
        os._exit(0)
    path = os.read(keeper_says, 4096).decode()
    os.waitpid(pid, 0)
    assert path
    own = pool.client.post("/v1/allocations", BROKERED | {"enter": True})
    assert as_user(EVE, lambda: knock(own["worker_socket"])) == "PermissionError"
    assert as_user(EVE, lambda: _listed(own["worker_socket"])) == "PermissionError"
    pool.client.delete(f"/v1/allocations/{own['id']}?force=1")
    nothing_is_left(pool, [])


def _listed(path: str) -> str:
    try:
        os.listdir(Path(path).parent)
    except OSError as error:
        return type(error).__name__
    return "listed"


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_a_program_that_ends_by_itself_leaves_nothing(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    assert tenant.finish() == 0
    nothing_is_left(world, workers(allocation, tenant))
    (ended,) = [e for e in world.events("released") if e["allocation"] == allocation["id"]]
    assert ended["reason"] == "ended"


def test_program_that_is_killed_leaves_nothing(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    tenant.kill()
    nothing_is_left(world, workers(allocation, tenant))


def test_a_worker_that_is_killed_ends_that_programs_session_and_nobody_elses(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    other, beside = start_holder(world, hold)
    host = host_of(allocation, tenant)
    (worker,) = set(workers(allocation, tenant)) - {host}
    os.kill(worker, signal.SIGKILL)
    until(lambda: not identify(worker), what="the worker to end")
    assert identify(host) is not None
    assert other.alive()
    assert beside["id"] in {a["id"] for a in world.allocations()}
    again, _ = world.running(hold, "10", "10", **BROKERED)
    until(lambda: again.says("held 10"), what="another one to be served")


def test_a_host_that_is_killed_ends_its_allocation_and_says_so(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    os.kill(host_of(allocation, tenant), signal.SIGKILL)
    nothing_is_left(world, workers(allocation, tenant))
    (told,) = world.events("worker_died")
    assert told["allocation"] == allocation["id"]
    assert tenant.alive()  # the driver reports it to the program


def test_a_release_ends_the_worker_and_leaves_the_program(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    world.client.delete(f"/v1/allocations/{allocation['id']}?force=1")
    nothing_is_left(world, workers(allocation, tenant))
    assert not world.events("worker_died")


def test_a_pool_that_is_killed_finds_its_workers_again(make_world: Callable[..., World], hold: str) -> None:
    world = make_world()
    world.up()
    tenant, allocation = start_holder(world, hold)
    ended, lost = start_holder(world, hold)
    held_at = time.time()
    until(lambda: looked_at_s(world) > held_at, what="the pool to look at what it holds")
    world.kill()
    time.sleep(2.0)
    ended.kill()
    until(ended.dead, what="the program to end")
    ended_at = time.time()
    until(lambda: len([pid for pid in workers(lost, ended) if identify(pid)]) == 1, what="its worker to end")
    time.sleep(2.0)
    world.up()
    until(lambda: [a["id"] for a in world.allocations()] == [allocation["id"]], what="the ended one to be let go")
    metered_to = metered_until_s(world, lost)
    assert abs(metered_to - ended_at) <= 1.0, "its host outlived it, and nobody pays for that"
    assert not any(identify(pid) for pid in workers(lost, ended))
    found = world.allocation_of(tenant)
    assert found is not None
    assert found["pids"] == allocation["pids"]
    assert tenant.finish() == 0
    nothing_is_left(world, workers(allocation, tenant))


def test_what_died_while_no_pool_ran_is_let_go(make_world: Callable[..., World], hold: str) -> None:
    world = make_world()
    world.up()
    tenant, allocation = start_holder(world, hold)
    world.kill()
    os.kill(host_of(allocation, tenant), signal.SIGKILL)
    until(lambda: not any(identify(pid) for pid in workers(allocation, tenant)), what="its worker to end")
    world.up()
    nothing_is_left(world, [])


def test_ctrl_c_ends_the_program_as_without_a_worker(terminal: Any, world: World) -> None:
    script = "import signal, sys\nsignal.signal(2, lambda *_: sys.exit(42))\nprint('ready', flush=True)\nsignal.pause()"
    words = ("run", "--isolation", "brokered", "--memory", "1GiB", "--cores", "10", "--")
    job = terminal.start(*words, sys.executable, "-c", script)
    job.says("ready")
    job.signal(signal.SIGINT)
    assert job.code() == 42
    nothing_is_left(world, [])


def test_one_that_stands_outlives_its_asker_until_it_is_given_back(world: World) -> None:
    def asked(body: dict[str, Any]) -> None:
        """Ask from a process that ends with the answer."""
        asker = os.fork()
        if asker == 0:
            world.client.post("/v1/allocations", body)
            os._exit(0)
        os.waitpid(asker, 0)

    def running() -> list[dict[str, Any]]:
        return [a for a in world.allocations() if a["state"] == "running"]

    asked(BROKERED | {"standing": True})
    (kept,) = until(running, what="it to be granted")
    asked(BROKERED)
    until(lambda: world.events("released"), what="the allocation that does not stand to end with its later asker")
    assert [a["id"] for a in world.allocations()] == [kept["id"]]
    world.client.delete(f"/v1/allocations/{kept['id']}?force=1")
    nothing_is_left(world, kept["pids"])


def test_one_that_stands_ends_when_nobody_has_said_for_long_enough_that_it_is_needed(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.up()
    stands = BROKERED | {"standing": True, "keep_s": KEEP_S}
    forever = world.client.post("/v1/allocations", BROKERED | {"standing": True})
    kept, left = (world.client.post("/v1/allocations", stands) for _ in range(2))

    def there() -> set[str]:
        found = world.client.post(f"/v1/allocations/{kept['id']}/keep", {})
        assert found["keep_s"] == KEEP_S
        return {a["id"] for a in world.allocations()}

    until(lambda: there() == {forever["id"], kept["id"]}, what="the one that is left to end")
    (ended,) = until(
        lambda: [e for e in world.events("released") if e["allocation"] == left["id"]], what="the event of its end"
    )
    assert ended["reason"] == "not_kept"
    world.kill()
    world.up()
    until(
        lambda: {a["id"] for a in world.allocations()} == {forever["id"]}, what="a pool after a restart to end it too"
    )
    assert world.client.post(f"/v1/allocations/{forever['id']}/keep", {})["keep_s"] == 0


# -- attacks -------------------------------------------------------------------------------------------------------------


def test_garbage_many_and_silent_connections_at_the_workers_socket_delay_no_other(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    path = Path(world.client.get(f"/v1/allocations/{allocation['id']}/environment")["worker_socket"])
    for noise in (b"GET / HTTP/1.1\r\n\r\n" * 8, os.urandom(4096), struct.pack("<QHH", hello.MAGIC, 1, 9)):
        with hello.connect(path) as connection:
            connection.sendall(noise)
    silent = [hello.connect(path) for _ in range(40)]
    for _ in range(1000):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(path))
    assert world.client.get("/v1/status")["pid"]
    other, _ = start_holder(world, hold)  # its limit of 60 s is below the time that 40 silent connections take in turn
    assert tenant.alive()
    assert other.finish() == 0
    for connection in silent:
        connection.close()
    assert tenant.finish() == 0
    until(lambda: not world.allocations(), what="both to end")


def test_a_tenant_that_is_stopped_delays_nobody(world: World, hold: str) -> None:
    tenant, _ = start_holder(world, hold)
    os.kill(tenant.pid, signal.SIGSTOP)
    other, _ = start_holder(world, hold)
    assert other.finish() == 0
    tenant.kill()
    until(lambda: not world.allocations(), what="both to end")


def test_who_runs_in_a_slice_is_not_the_tenant(world: World, hold: str) -> None:
    tenant, allocation = start_holder(world, hold)
    users = {owner(found) for pid in workers(allocation, tenant) if (found := identify(pid)) is not None}
    assert (os.geteuid() in users) is not ROOT
    reported = world.events("stranger")
    assert reported == []
