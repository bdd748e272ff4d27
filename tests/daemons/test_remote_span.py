"""One program that uses devices of two servers, with a lease of each. Each server has a pool and a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.remote import RemoteSite
from tests.daemons.terminal import Terminal
from tests.daemons.world import World, until
from tests.native.sim_cuda_programs import CudaNode, program

from calabash.adapters.host.processes import identify


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RemoteSite]]:
    """Yield two servers with one card each."""
    made = []
    for number, card in enumerate(("A100-40GB", "T4"), 1):
        directory = tmp_path_factory.mktemp(f"span{number}")
        directory.chmod(0o755)
        world = World(directory / "home", card)
        world.up()
        (directory / "s").mkdir()
        site = RemoteSite(world, directory / "s", "--reconnect-within", "3s", "--name", f"lab0{number}")
        site.up()
        made.append(site)
    yield made
    for site in made:
        site.close()
        site.world.close()


@pytest.fixture
def client(sites: list[RemoteSite], tmp_path: Path) -> Iterator[Terminal]:
    """Yield the terminal of a client that knows both servers."""
    home = tmp_path / "client"
    home.mkdir()
    made = Terminal(home, tmp_path)
    for site in sites:
        site.scratch = tmp_path
        made("remote", "add", site.address, "--token", str(site.token()))
    yield made
    made.close()
    for site in sites:
        site.clean()


def held(sites: list[RemoteSite]) -> list[int]:
    return [len(site.leases()) for site in sites]


def test_a_program_uses_cards_of_two_servers_as_it_uses_two_of_its_own_machine(
    sites: list[RemoteSite], client: Terminal, tmp_path: Path
) -> None:
    local = CudaNode(tmp_path / "local.state", "A100-40GB,T4")
    spanned = ("run", "--remote", "--span", "--gpus", "2", "--", str(program("remote_span")))
    for check in ("copies", "order", "library"):
        assert client(*spanned, check).stdout == local.run("remote_span", check)
    local.close()
    until(lambda: held(sites) == [0, 0], what="both leases to be given back")
    until(lambda: not list((client.home / "remote" / "leases").iterdir()), what="their keys to be forgotten")


def test_both_leases_are_seen_and_end_with_the_program(sites: list[RemoteSite], client: Terminal) -> None:
    job = client.start("run", "--remote", "--span", "--gpus", "2", "--memory", "4GiB", "--", "sh", "-c", "echo on; cat")
    job.says("on\n")
    assert {lease["server"] for lease in client.items("remote", "sessions")} == {"lab01", "lab02"}
    assert [lease["slices"][0]["memory_mib"] for site in sites for lease in site.leases()] == [4096, 4096]
    job.kill()
    until(lambda: held(sites) == [0, 0], what="both leases to be given back")


def test_where_one_server_is_enough_one_lease_is_taken(sites: list[RemoteSite], client: Terminal) -> None:
    told = client("run", "--remote", "--span", "--filter", "model~t4", "--", "sh", "-c", "echo $CALABASH_REMOTE")
    assert told.stdout.startswith("file:")
    until(lambda: held(sites) == [0, 0], what="the lease to be given back")


def test_a_reservation_of_two_servers_serves_several_programs(sites: list[RemoteSite], client: Terminal) -> None:
    lease = client("remote", "reserve", "--span", "--gpus", "2", "--idle", "1h").stdout.strip()
    assert lease.count(",") == 1
    for _ in range(2):
        client("run", "--remote", "--lease", lease, "--", str(program("remote_span")), "stack")
    assert held(sites) == [1, 1]
    client("remote", "release", lease)
    assert held(sites) == [0, 0]


def test_when_the_rest_cannot_be_had_nothing_is_held_and_waiting_gets_all(
    sites: list[RemoteSite], client: Terminal
) -> None:
    taken = client("remote", "reserve", "--server", "lab02", "--idle", "1h").stdout.strip()
    spanned = ("run", "--remote", "--span", "--gpus", "2")
    refused = client(*spanned, "--", "true", code=5)
    assert "1 of 2 matching devices of 2 servers are free, 2 requested" in refused.stderr
    assert held(sites) == [0, 1]
    waiting = client.start(*spanned, "--wait", "10m", "--", str(program("remote_span")), "stack")
    until(lambda: waiting.running() and identify(waiting.pid) is not None, what="it to wait")
    assert held(sites)[1] == 1
    client("remote", "release", taken)
    assert waiting.code() == 0, waiting.text
    until(lambda: held(sites) == [0, 0], what="both leases to be given back")


def test_more_than_there_is_on_all_servers_is_refused_at_once(client: Terminal) -> None:
    refused = client("run", "--remote", "--span", "--gpus", "3", "--wait", "10m", "--", "true", code=None)
    assert refused.returncode not in {0, 1}
    assert "2 servers together have 2 matching devices, 3 requested" in refused.stderr
