"""Cards of another machine: a real pool on a simulated node, its server, and clients over the network."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.remote import HELD, RemoteSite
from tests.daemons.terminal import Terminal
from tests.daemons.world import World, until
from tests.unit.broker.server.test_first_record import hello

from calabash.broker.client.account import RemoteAccount
from calabash.broker.server.serve import PER_PEER_MAX

GRACE_S = 3
SMALL = ("--memory", "1GiB", "--cores", "10")


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    """Yield the server that tests share."""
    directory = tmp_path_factory.mktemp("remote")
    directory.chmod(0o755)
    world = World(directory / "home")
    world.up()
    site = RemoteSite(world, directory / "s", "--reconnect-within", f"{GRACE_S}s")
    (directory / "s").mkdir()
    site.up()
    yield site
    site.close()
    world.close()


@pytest.fixture
def site(standing: RemoteSite, tmp_path: Path) -> Iterator[RemoteSite]:
    standing.scratch = tmp_path
    if not standing.pid:
        standing.up()
    yield standing
    standing.clean()


@pytest.fixture
def client(site: RemoteSite) -> Terminal:
    return site.client()


# -- runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM)])
def test_a_remote_run_ends_as_its_program_does_and_gives_its_cards_back(
    site: RemoteSite, client: Terminal, script: str, code: int
) -> None:
    client("run", "--remote", *SMALL, "--", "sh", "-c", script, code=code)
    until(lambda: not site.leases(), what="the lease to end with its program")
    until(lambda: not list((client.home / "remote" / "leases").iterdir()), what="the key to be forgotten")


def test_a_remote_program_is_told_of_its_lease_by_a_file_and_has_no_secret_anywhere_else(
    site: RemoteSite, client: Terminal
) -> None:
    job = client.start("run", "--remote", *SMALL, "--", *HELD)
    job.says("holding")
    seen = Path(f"/proc/{job.pid}/environ")  # empty while the process executes a new program
    until(lambda: b"CALABASH_REMOTE=" in seen.read_bytes(), what="its environment to be there")
    environment = seen.read_bytes().decode().split("\0")
    said = dict(line.partition("=")[::2] for line in environment)
    path = Path(said["CALABASH_REMOTE"].removeprefix("file:"))
    told = dict(line.partition("=")[::2] for line in path.read_text().splitlines())
    assert (told["server"], told["grace_s"], len(told["key"])) == (site.address, "3", 64)
    assert path.stat().st_mode & 0o777 == 0o600
    assert said["LD_LIBRARY_PATH"].endswith("_native/remote")
    assert "CALABASH_SLOT" not in said
    secrets = [told["key"], json.loads((client.home / "remote" / "servers.json").read_text())["servers"][0]["token"]]
    logs = [(site.world.home / "server" / name).read_text() for name in ("audit.log", "server.log")]
    words = Path(f"/proc/{job.pid}/cmdline").read_text(errors="replace")
    assert not [secret for secret in secrets for text in (*environment, *logs, words) if secret in text]
    assert job.finish() == 0


def test_ctrl_c_is_the_programs_and_the_cards_come_back(site: RemoteSite, client: Terminal) -> None:
    job = client.start("run", "--remote", *SMALL, "--", *HELD, own_group=True)
    job.says("holding")
    job.signal(signal.SIGINT)
    assert job.code() == -signal.SIGINT
    until(lambda: not site.leases(), what="the lease to end")


def test_a_lease_lives_as_long_as_a_descendant_of_the_program(site: RemoteSite, client: Terminal) -> None:
    job = client.start("run", "--remote", *SMALL, "--", "sh", "-c", "sleep 1000 & echo $!")
    assert job.code() == 0
    made_at = client.items("remote", "sessions")[0]["made_at"]
    until(lambda: time.time() > made_at + 1.7 * GRACE_S, what="more than the grace period to go by")
    assert len(site.leases()) == 1
    os.kill(int(job.text), signal.SIGKILL)
    until(lambda: not site.leases(), what="the lease to end with the last descendant")


def test_a_client_that_is_gone_without_a_word_loses_its_lease_after_the_grace_period(
    site: RemoteSite, client: Terminal
) -> None:
    client("remote", "reserve", *SMALL, "--idle", "2s")
    assert len(site.leases()) == 1
    until(lambda: not site.leases(), what="the lease to end")
    assert client.items("remote", "sessions") == []


def test_no_free_card_is_one_line_with_the_reason_and_what_to_do(site: RemoteSite, client: Terminal) -> None:
    for _ in range(2):
        client.start("run", "--remote", "--", *HELD).says("holding")
    said = client.refused(5, "run", "--remote", "--", "true")
    assert "--wait" in said


def test_a_run_right_after_another_has_its_cards_and_waits_for_nobody_elses(site: RemoteSite, client: Terminal) -> None:
    for _ in range(4):  # whole cards, and all that there are
        client("run", "--remote", "--gpus", "2", "--", "true")
    other = site.client().start("run", "--remote", "--", *HELD)
    other.says("holding")
    assert "--wait" in client.refused(5, "run", "--remote", "--gpus", "2", "--", "true")
    assert other.finish() == 0
    until(lambda: not list((client.home / "remote" / "runs").iterdir()), what="its runs to be forgotten")


def test_a_run_that_waits_gets_the_card_that_comes_free(site: RemoteSite, client: Terminal) -> None:
    first, second = (client.start("run", "--remote", "--", *HELD) for _ in range(2))
    first.says("holding")
    second.says("holding")
    third = client.start("run", "--remote", "--wait", "60s", "--", "echo", "ran")
    until(lambda: [a for a in site.world.allocations() if a["state"] == "pending"], what="it to wait in the queue")
    first.finish()
    assert third.code() == 0
    assert third.text.startswith("waiting for devices: ")
    assert third.text.splitlines()[1:] == ["ran"], "the reason is said once"
    second.finish()


def test_a_reservation_is_written_as_json_and_says_nothing_of_its_wait_when_it_is_told_so(
    site: RemoteSite, client: Terminal
) -> None:
    first = json.loads(client("remote", "reserve", "--gpus", "2", "-o", "json").stdout)
    assert (first["kind"], [part["id"] for part in first["parts"]]) == ("Lease", [first["lease"]])
    waiting = client.start("remote", "reserve", "--wait", "60s", "--quiet")
    until(lambda: [a for a in site.world.allocations() if a["state"] == "pending"], what="it to wait in the queue")
    client("remote", "release", first["lease"])
    assert waiting.code() == 0
    (lease,) = waiting.text.splitlines()
    client("remote", "release", lease)


def test_ctrl_c_while_waiting_leaves_the_queue(site: RemoteSite, client: Terminal) -> None:
    for _ in range(2):
        client.start("run", "--remote", "--", *HELD).says("holding")
    waiting = client.start("run", "--remote", "--wait", "60s", "--", "true", own_group=True)
    until(lambda: [a for a in site.world.allocations() if a["state"] == "pending"], what="it to wait")
    waiting.signal(signal.SIGINT)
    assert waiting.code() == 130
    until(lambda: not [a for a in site.world.allocations() if a["state"] == "pending"], what="it to be withdrawn")


def test_two_clients_at_once_have_cards_of_their_own_and_see_only_their_own_leases(site: RemoteSite) -> None:
    ann, bob = site.client(site.token("ann")), site.client(site.token("bob"))
    for client in (ann, bob):
        client.start("run", "--remote", "--", *HELD).says("holding")
    assert sorted(a["tenant"] for a in site.leases()) == ["ann", "bob"]
    devices = [a["slices"][0]["device"] for a in site.leases()]
    assert len(set(devices)) == 2
    assert [s["token"] for s in ann.items("remote", "sessions")] == ["ann"]
    theirs = bob.items("remote", "sessions")[0]["id"]
    assert "no lease matches" in ann.refused(3, "remote", "release", theirs)


# -- requests ------------------------------------------------------------------------------------------------------


def test_filters_choose_cards_and_wrong_ones_are_told_with_their_position(site: RemoteSite, client: Terminal) -> None:
    assert len(client.items("remote", "list", "--filter", "memory>=30GiB,model~a100,compute_capability>=8")) == 2
    assert client.items("remote", "list", "--filter", "memory>=80GiB") == []
    client("run", "--remote", *SMALL, "--filter", "model~A100", "--filter", "server=lab01", "--", "true")
    assert "position 9: memory '40' has no unit" in client.refused(
        2, "run", "--remote", "--filter", "memory>=40", "--", "true"
    )
    assert "0 of 2 devices" in client.refused(5, "run", "--remote", "--filter", "model~H100", "--", "true")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--mode", "mig"), 2, "--mode cannot be used with --remote"),
        (("--tenant", "x"), 2, "--tenant cannot be used with --remote"),
        (("--server", "other"), 3, "there is no server 'other'"),
        (("--lease", "abc"), 3, "no reservation"),
        (("--gpus", "3"), 5, "2 of 2 devices"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    site: RemoteSite, client: Terminal, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in client.refused(code, "run", "--remote", *words, "--", "true")


def test_options_of_remote_runs_are_refused_without_it(client: Terminal) -> None:
    assert "--filter requires --remote" in client.refused(2, "run", "--filter", "memory>1GiB", "--", "true")


def test_idle_connections_of_one_user_are_bounded_and_its_next_request_is_served(
    site: RemoteSite, client: Terminal
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    idle, closed = [], 0
    try:
        for _ in range(PER_PEER_MAX + 100):
            line = socket.create_connection(("127.0.0.1", site.port), timeout=60)
            idle.append(context.wrap_socket(line))
        begun_s = time.monotonic()
        client("run", "--remote", *SMALL, "--", "true")
        for line in idle[:20]:
            line.settimeout(1)
            try:
                closed += line.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                closed += 1
        assert closed == 20, f"{closed} of the 20 oldest are closed after {time.monotonic() - begun_s:.1f} s"
    finally:
        for line in idle:
            line.close()


def test_a_token_bounds_what_is_held_at_a_time(site: RemoteSite) -> None:
    client = site.client(site.token("small", "--gpus", "1", "--memory", "2GiB", "--cores", "50"))
    client.start("run", "--remote", "--memory", "1GiB", "--cores", "50", "--", *HELD).says("holding")
    assert "allows 1 GPUs at a time" in client.refused(
        5, "run", "--remote", "--memory", "1GiB", "--cores", "50", "--", "true"
    )
    assert "50% of a device, 100% requested" in client.refused(5, "run", "--remote", "--memory", "1GiB", "--", "true")


# -- tokens --------------------------------------------------------------------------------------------------------


def test_a_token_that_is_redirected_to_a_file_is_for_its_owner_only(site: RemoteSite, tmp_path: Path) -> None:
    path = tmp_path / "mine.token"
    with path.open("wb") as sink:
        words = site.owner.words("remote", "server", "token", "create", "vision", "--expires", "30d")
        subprocess.run(words, env=site.owner.environment, stdout=sink, check=True, timeout=60)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert "chmod 600" in Terminal(tmp_path / "h", tmp_path).refused(
        4, "remote", "add", site.address, "--token", str(path)
    )


def test_tokens_that_are_tampered_with_revoked_expired_or_anothers_are_refused(
    site: RemoteSite, tmp_path: Path
) -> None:
    good = site.token("vision")
    nobody = Terminal(tmp_path / "nobody", tmp_path)

    def refused(text: str) -> str:
        path = tmp_path / "bad.token"
        path.write_text(text)
        path.chmod(0o600)
        return nobody.refused(4, "remote", "add", site.address, "--token", str(path))

    line = next(line for line in good.read_text().splitlines() if line.startswith("token"))
    tampered = line[:-9] + ("B" if line[-9] == "A" else "A") + line[-8:]
    assert "signature is invalid" in refused(good.read_text().replace(line, tampered))
    other = "sha256:" + "0" * 64
    certificate = next(line for line in good.read_text().splitlines() if line.startswith("certificate"))
    assert "is not the server of the token" in refused(good.read_text().replace(certificate, f"certificate = {other}"))
    short = site.token("short", "--expires", "1s").read_text()
    made_at = time.time()
    until(lambda: time.time() > made_at + 1.1, what="it to expire")
    assert "has expired" in refused(short)
    site.owner("remote", "server", "token", "revoke", "vision")
    assert "was revoked" in refused(good.read_text())
    assert "no token 'nobody'" in site.owner.refused(3, "remote", "server", "token", "revoke", "nobody")


def test_a_token_that_is_revoked_cuts_what_runs_with_it_and_nothing_else(site: RemoteSite) -> None:
    ann, bob = site.client(site.token("ann")), site.client(site.token("bob"))
    for client in (ann, bob):
        client.start("run", "--remote", *SMALL, "--", *HELD).says("holding")
    site.owner("remote", "server", "token", "revoke", "ann")
    until(lambda: [a["tenant"] for a in site.leases()] == ["bob"], what="ann's lease to be cut")
    assert "was revoked" in ann.refused(4, "run", "--remote", *SMALL, "--", "true")
    assert "token revoked" in (site.world.home / "server" / "audit.log").read_text()


def test_keys_are_rotated_and_tokens_of_the_key_before_count_as_long_as_was_said(site: RemoteSite) -> None:
    before = site.client(site.token("before"))
    site.owner("remote", "server", "token", "rotate-keys", "--keep", "1h")
    before("remote", "list")
    site.client(site.token("after"))("remote", "list")
    site.owner("remote", "server", "token", "rotate-keys", "--keep", "0")
    assert "is no longer valid" in before.refused(4, "remote", "list")


# -- reservations --------------------------------------------------------------------------------------------------


def test_a_reservation_outlives_programs_until_it_is_released(site: RemoteSite, client: Terminal) -> None:
    lease = client("remote", "reserve", *SMALL, "--idle", "1h").stdout.strip()
    for _ in range(2):
        assert client("run", "--remote", "--lease", lease[:8], "--", "echo", "ran").stdout == "ran\n"
    assert [a["state"] for a in site.leases()] == ["running"]
    assert client("remote", "sessions", "-o", "name").stdout.strip() == lease
    assert client("remote", "release", lease[:8]).stdout.strip() == lease
    until(lambda: not site.leases(), what="the cards to be free")
    assert "no reservation" in client.refused(3, "run", "--remote", "--lease", lease, "--", "true")


# -- start and end of the server -----------------------------------------------------------------------------------


def test_a_server_that_is_killed_and_starts_again_has_its_leases_and_programs_go_on(
    site: RemoteSite, client: Terminal
) -> None:
    job = client.start("run", "--remote", *SMALL, "--", *HELD)
    job.says("holding")
    (lease,) = client.items("remote", "sessions")
    hosts = site.leases()[0]["pids"]
    site.kill()
    assert "does not answer" in client.refused(1, "run", "--remote", "--", "true")
    assert job.running()
    site.up()
    assert [s["id"] for s in client.items("remote", "sessions")] == [lease["id"]]
    assert site.leases()[0]["pids"] == hosts
    up_at = time.time()
    until(lambda: time.time() > up_at + 1.7 * GRACE_S, what="more than the grace period to go by")
    assert len(site.leases()) == 1
    assert job.finish() == 0
    until(lambda: not site.leases(), what="the lease to end")


def test_a_server_that_never_comes_back_leaves_no_card_taken_also_over_a_restart_of_the_pool(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    world = World(tmp_path / "home")
    world.up()
    (tmp_path / "s").mkdir()
    site = RemoteSite(world, tmp_path / "s", "--reconnect-within", "1s")
    site.up()
    client = site.client()
    client.start("run", "--remote", *SMALL, "--", *HELD).says("holding")
    client("remote", "reserve", *SMALL, "--idle", "1h")
    waiting = client.start("run", "--remote", "--gpus", "2", "--wait", "60s", "--", "true")
    until(lambda: [a for a in world.allocations() if a["state"] == "pending"], what="one to wait in the queue")
    site.kill()
    until(lambda: len(world.allocations()) == 2, what="the one that waits to be withdrawn")
    assert waiting.code() == 1
    world.kill()
    world.up()
    assert len(world.allocations()) == 2
    until(lambda: not world.allocations(), what="what nobody keeps to end")
    assert all(d["memory_used_mib"] == 0 for d in world.devices())
    site.close()
    world.close()


def test_a_server_that_is_drained_takes_no_leases(site: RemoteSite, client: Terminal) -> None:
    site.owner("remote", "server", "drain")
    assert "being drained" in client.refused(1, "run", "--remote", *SMALL, "--", "true")
    site.owner("remote", "server", "undrain")
    client("run", "--remote", *SMALL, "--", "true")


def test_down_refuses_while_leases_are_held(site: RemoteSite, client: Terminal) -> None:
    client.start("run", "--remote", *SMALL, "--", *HELD).says("holding")
    assert "1 lease is held" in site.owner.refused(1, "remote", "server", "down")
    assert "server is down" in site.owner("remote", "server", "down", "--force").stdout
    site.pid = 0
    until(lambda: not site.leases(), what="the lease to be taken back")
    assert "no server answers" in site.owner.refused(1, "remote", "server", "status")


def test_a_second_server_and_a_port_that_is_taken_are_told_of(site: RemoteSite) -> None:
    assert "a server is already running" in site.owner.refused(1, "remote", "server", "up", "--listen", "127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        site.kill()
        assert f"cannot listen on 127.0.0.1:{port}" in site.owner.refused(
            1, "remote", "server", "up", "--listen", f"127.0.0.1:{port}"
        )
    assert "is no address" in site.owner.refused(2, "remote", "server", "up", "--listen", "nowhere:x")


def test_a_server_that_is_absent_or_silent_is_given_up_soon(site: RemoteSite, client: Terminal) -> None:
    site.kill()
    assert "does not answer" in client.refused(1, "remote", "list")
    with socket.create_server(("127.0.0.1", site.port)):  # accepts the connection and never sends anything
        assert "did not answer within 5s" in client.refused(1, "remote", "list")


# -- the port ------------------------------------------------------------------------------------------------------


def test_the_connection_of_a_program_is_handed_to_its_worker(site: RemoteSite, client: Terminal) -> None:
    lease = client("remote", "reserve", *SMALL, "--idle", "1h").stdout.strip()
    with site.connect() as program:
        program.sendall(hello(f"{lease}.{'1b' * 16}".encode()))
        until(lambda: client.items("remote", "sessions")[0]["sessions"], what="the session to be seen")
    (session,) = client.items("remote", "sessions")[0]["sessions"]
    assert session["id"] == "1b" * 4
    assert session["peer"].startswith("127.0.0.1:")


def _https(site: RemoteSite, question: bytes) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with site.connect() as plain, context.wrap_socket(plain) as secured:
        secured.sendall(question)
        found = b""
        while chunk := secured.recv(65536):
            found += chunk
    return found


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"GET /v1/server HTTP/1.0\r\n\r\n", b"403"),
        (b"GET /v1/server HTTP/1.0\r\nAuthorization: Bearer nonsense\r\n\r\n", b"403"),
        (b"POST /v1/drain HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", b"403"),
        (b"GET /v2/other HTTP/1.0\r\n\r\n", b"404"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 40_000, b"400"),
    ],
)
def test_who_has_no_token_gets_nothing(site: RemoteSite, question: bytes, status: bytes) -> None:
    assert _https(site, question).split()[1] == status


def test_a_thousand_connections_in_a_burst_leave_the_port_open_to_those_who_have_a_token(
    site: RemoteSite, client: Terminal
) -> None:
    client("remote", "reserve", *SMALL, "--idle", "1h")
    lease = client.items("remote", "sessions")[0]["id"]
    silent = [site.connect() for _ in range(400)]
    for number in range(600):
        with site.connect() as one:
            one.sendall(hello(f"{lease if number % 2 else '0' * 32}.{number:032x}".encode()))
    assert len(client.items("remote", "list")) == 2
    client("run", "--remote", *SMALL, "--", "true")
    for connection in silent:
        connection.close()
    (session,) = client.items("remote", "sessions")
    assert session["id"] == lease


def test_what_is_no_tls_is_hung_up_on_and_others_are_served(site: RemoteSite, client: Terminal) -> None:
    with site.connect() as rude:
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert rude.recv(4096)[:1] in {b"", b"\x15"}
    with site.connect(), site.connect():
        client("remote", "list")


def test_metrics_are_for_who_has_a_token(site: RemoteSite, client: Terminal) -> None:
    client("run", "--remote", *SMALL, "--", "true")
    (server,) = RemoteAccount(client.home / "remote").servers()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(server.address.host, server.address.port, context=context, timeout=60)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {server.token}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    assert "calabash_remote_leases_total" in text
    assert 'calabash_remote_connections_total{kind="command line"}' in text
