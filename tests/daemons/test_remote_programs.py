"""Programs that use devices of another machine over TLS, through a worker in a slice, as users start them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.remote import RemoteSite
from tests.daemons.terminal import Job, Terminal
from tests.daemons.world import World, until

from calabash.adapters.host.processes import identify

STEPS = (sys.executable, str(Path(__file__).parent / "programs" / "remote_steps.py"))


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    """Yield the server that tests share."""
    directory = tmp_path_factory.mktemp("programs")
    directory.chmod(0o755)
    world = World(directory / "home")
    world.up()
    (directory / "s").mkdir()
    site = RemoteSite(world, directory / "s", "--reconnect-within", "3s")
    site.up()
    yield site
    site.close()
    world.close()


@pytest.fixture
def site(standing: RemoteSite, tmp_path: Path) -> Iterator[RemoteSite]:
    standing.scratch = tmp_path
    yield standing
    standing.clean()


@pytest.fixture
def client(site: RemoteSite) -> Terminal:
    return site.client()


def begun(client: Terminal, *options: str, cards: int = 1) -> Job:
    """Start a program; return it once it has its cards."""
    job = client.start("run", "--remote", *options, "--", *STEPS)
    job.says(f"begun 0 {cards}\n")
    return job


def does(job: Job, step: str) -> str:
    """Send a command to the program; return CUDA's result, which the program prints."""
    before = len(job.text)
    assert job.process.stdin is not None
    job.process.stdin.write(f"{step}\n".encode())
    job.process.stdin.flush()
    until(lambda: job.text[before:].endswith("\n"), what=f"an answer to {step!r}; it said {job.text!r}")
    return job.text[before:].strip()


def test_a_program_has_as_many_cards_and_as_much_memory_as_it_asked_for_and_no_more(
    site: RemoteSite, client: Terminal
) -> None:
    job = begun(client, "--gpus", "2", "--memory", "2GiB", cards=2)
    assert does(job, "info").endswith(" 2048")
    assert does(job, "alloc 1024") == "alloc 0"
    assert does(job, "write") == "write 0"
    assert does(job, "alloc 1024") == "alloc 2"
    (lease,) = site.leases()
    until(lambda: site.leases()[0]["slices"][0]["memory_used_mib"] >= 1024, what="the pool to see what is used")
    assert [part["memory_mib"] for part in lease["slices"]] == [2048, 2048]
    assert job.finish() == 0


def test_two_programs_of_a_reservation_share_its_memory(site: RemoteSite, client: Terminal) -> None:
    lease = client("remote", "reserve", "--memory", "4GiB", "--idle", "1h").stdout.strip()
    first, second = (begun(client, "--lease", lease) for _ in range(2))
    assert does(first, "alloc 2048") == "alloc 0"
    assert does(second, "alloc 2048") == "alloc 2"
    assert len(client.items("remote", "sessions")[0]["sessions"]) == 2
    assert first.finish() == 0
    until(lambda: does(second, "alloc 2048") == "alloc 0", what="what the first had to be free")
    assert second.finish() == 0


def test_a_broker_that_is_killed_does_not_touch_programs_that_run(site: RemoteSite, client: Terminal) -> None:
    job = begun(client, "--memory", "1GiB")
    site.kill()
    assert does(job, "alloc 64") == "alloc 0"
    assert does(job, "write") == "write 0"
    site.up()
    assert does(job, "write") == "write 0"
    assert job.finish() == 0


def test_a_program_whose_token_is_revoked_gets_an_error_and_ends(site: RemoteSite) -> None:
    client = site.client(site.token("ann"))
    job = begun(client, "--memory", "1GiB")
    assert does(job, "alloc 64") == "alloc 0"
    site.owner("remote", "server", "token", "revoke", "ann")
    until(lambda: not site.leases(), what="the lease to be cut")
    assert does(job, "write") not in {"write 0", ""}
    assert job.finish() == 0
    assert "begun 0" not in client("run", "--remote", "--", *STEPS, code=4).stdout


def test_the_end_of_a_worker_is_that_programs_and_nobody_elses(site: RemoteSite, client: Terminal) -> None:
    first = begun(client, "--memory", "1GiB")
    second = begun(client, "--memory", "1GiB")
    assert does(first, "alloc 64") == "alloc 0"
    assert does(second, "alloc 64") == "alloc 0"
    victim = min(site.leases(), key=lambda lease: float(lease["created_at"]))
    assert site.pid not in victim["pids"]  # the requesting process is no member of the allocation
    for pid in victim["pids"]:
        os.kill(pid, signal.SIGKILL)
    assert does(first, "write") != "write 0"
    assert does(second, "write") == "write 0"
    assert second.finish() == 0


def keepers(client: Terminal) -> list[int]:
    """Return the processes that keep leases of this client."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"CALABASH_HOME={client.home}\0".encode() in (entry / "environ").read_bytes():
                words = (entry / "cmdline").read_bytes()
                if b"--remote" in words and b"remote_steps" in words and os.readlink(entry / "cwd") == "/":
                    found.append(int(entry.name))
    return found


def test_a_program_that_is_killed_is_not_waited_for_until_its_grace_is_over(site: RemoteSite, client: Terminal) -> None:
    job = begun(client, "--memory", "1GiB")
    assert does(job, "alloc 64") == "alloc 0"
    (lease,) = site.leases()
    os.kill(job.pid, signal.SIGKILL)
    until(lambda: not site.leases(), what="the lease to end")
    until(lambda: not [pid for pid in lease["pids"] if identify(pid)], what="its worker to end")
    assert "given back" in (site.world.home / "server" / "audit.log").read_text()


def test_a_keeper_that_is_killed_costs_its_own_lease_after_the_grace_and_nobody_elses(
    site: RemoteSite, client: Terminal
) -> None:
    job = begun(client, "--memory", "1GiB")
    other = begun(site.client(), "--memory", "1GiB")
    (keeper,) = keepers(client)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: len(site.leases()) == 1, what="the lease that nobody keeps to end")
    assert does(job, "write") not in {"write 0", ""}
    assert does(other, "alloc 64") == "alloc 0"
    assert other.finish() == 0
    assert "not renewed" in (site.world.home / "server" / "audit.log").read_text()


def test_a_program_of_a_lease_that_has_ended_has_no_device(site: RemoteSite, client: Terminal) -> None:
    lease = client("remote", "reserve", "--memory", "1GiB", "--idle", "1h").stdout.strip()
    key = (client.home / "remote" / "leases" / lease).read_text()
    client("remote", "release", lease)
    path = client.home / "late"
    path.write_text(key)
    said = site.run_late(path, *STEPS)
    assert "begun" in said
    assert "begun 0" not in said


def test_the_benchmark_measures_a_line_and_a_longer_one(site: RemoteSite, client: Terminal) -> None:
    near = json.loads(client("remote", "bench", "--quick", "-o", "json").stdout)
    far = json.loads(client("remote", "bench", "--quick", "-o", "json", "--rtt", "20ms").stdout)
    assert near["launches_per_s"] > 1000
    assert [copy["mib"] for copy in near["copies"]] == [1, 16]
    assert far["sync_us"] >= 20_000 > near["sync_us"]
    assert "launches" in client("remote", "bench", "--quick").stdout
    assert "out of range" in client.refused(2, "remote", "bench", "--rtt", "1h")
