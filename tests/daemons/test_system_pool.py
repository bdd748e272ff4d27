"""The system pool, which root runs at a fixed path and which users who name no pool use.

Other users must not be able to put a pool of their own at that path.

The commands run in a mount namespace in which the path leads to a pool of the test, and in which other users can enter
the directories of the interpreter and of the product, wherever these are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.users import ANN, EVE, User, open_way
from tests.daemons.world import HANG_S, NATIVE, World, until

from calabash.adapters.host.reach import barrier_to_others
from calabash.adapters.pool.client import SOCKET_FILE
from calabash.adapters.pool.system import SYSTEM_HOME

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users")

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """Mount namespace with an empty /var/lib, in which commands can be run as any user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "user"
        self.home.mkdir()
        self.home.chmod(0o777)
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"\n"
        self.root("mount -t tmpfs -o mode=755 tmpfs /var/lib && mkdir -p /var/lib/kept")
        self._let_others_in([Path(sys.base_prefix), Path(sys.prefix), ROOT])

    def _let_others_in(self, directories: list[Path]) -> None:
        barred = {}
        for number, path in enumerate(directories):
            barrier = barrier_to_others(path)
            if barrier is not None:
                barred[path] = (Path("/var/lib/kept") / str(number), barrier.path)
                self.root(f"mkdir {barred[path][0]} && mount --bind {path} {barred[path][0]}")
        for place in {barrier for _, barrier in barred.values()}:
            self.root(f"mount -t tmpfs -o mode=755 tmpfs {place}")
        for path, (kept, _) in barred.items():
            self.root(f"mkdir -p {path} && mount --bind {kept} {path}")

    def words(self, user: User | None, *command: str, **environment: str) -> list[str]:
        """Return the command line that runs a command inside as a user; None is root."""
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(self.home), "CALABASH_CONSOLE": "off", **environment}
        who = [] if user is None else ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
        return [*self.inside(), *who, "env", "-i", *(f"{name}={value}" for name, value in clean.items()), *command]

    def inside(self) -> list[str]:
        """Return the words in front of a command line that is to run in the namespace."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--wdns=/"]

    def root(self, script: str) -> None:
        subprocess.run(self.words(None, "sh", "-ec", script), check=True, timeout=HANG_S)

    def __call__(
        self, user: User | None, *words: str, code: int | None = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``calabash`` to its end as a user and check its exit code (None: any)."""
        done = subprocess.run(
            self.words(user, sys.executable, "-m", "calabash.cli.main", *words, **environment),
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert code is None or done.returncode == code, done
        return done

    def json(self, user: User | None, *words: str, code: int = 0) -> Any:
        return json.loads(self(user, *words, "-o", "json", code=code).stdout)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class InsideWorld(World):
    """Pool whose daemon runs in the mount namespace of a ``Machine``, so that slots which it mounts are visible there."""

    def __init__(self, home: Path, machine: Machine) -> None:
        super().__init__(home, options=("--console", "127.0.0.1:0"))
        self._machine = machine

    def command(self) -> list[str]:
        return [*self._machine.inside(), *super().command()]


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="calabash-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def machine(directory: Path) -> Iterator[Machine]:
    """Yield a machine without a system pool."""
    with closing(Machine(directory)) as made:
        yield made


@pytest.fixture
def pool(directory: Path, machine: Machine) -> Iterator[World]:
    """Yield root's pool of two devices, at its fixed path on the machine."""
    world = InsideWorld(directory / "pool", machine)
    (world.home / "pool.toml").write_text("[jobs]\nleast_user = 1\n")  # users of tests are accounts of the system
    world.up()
    open_way(world.home)
    machine.root(f"mkdir {SYSTEM_HOME} && mount --bind {world.home} {SYSTEM_HOME}")
    yield world
    world.close()


# -- root's pool -----------------------------------------------------------------------------------------------


def test_commands_of_another_user_without_a_pool_go_to_the_pool_of_root(pool: World, machine: Machine) -> None:
    assert pool.daemon is not None
    status = machine.json(ANN, "status")
    assert (status["pid"], status["home"]) == (pool.daemon.pid, str(pool.home))
    shows = "grep -c libcalabash.so /proc/self/maps >&2; id -u; test -r $CALABASH_SLOT/limits"
    done = machine(ANN, "run", "--memory", "1GiB", "--cores", "10", "--", "sh", "-c", shows)
    assert done.stdout == f"{ANN.uid}\n"
    assert int(done.stderr) > 0, "the program has preloaded the shim"
    program = subprocess.Popen(
        machine.words(
            ANN, sys.executable, "-m", "calabash.cli.main", *("run", "--memory", "1GiB", "--cores", "10"), "--", "cat"
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        (row,) = until(
            # The slice of the first program may still be listed.
            lambda: [r for r in machine.json(ANN, "ps")["items"] if (r["state"], r["command"]) == ("running", ["cat"])],
            what="a slice",
        )
        assert row["user"] == ANN.name
        assert row["id"] in machine(ANN, "why", row["id"]).stdout
        assert [r["tenant"] for r in machine.json(ANN, "tenant", "usage")["items"]] == [ANN.name]
        assert len(machine.json(ANN, "smi")["items"]) == 2
        assert [q["name"] for q in machine.json(ANN, "queue", "list")["items"]] == ["default"]
        machine(ANN, "release", row["id"])
    finally:
        program.kill()
        program.communicate()


def test_jobs_and_the_console_of_root_are_another_users_too(pool: World, machine: Machine) -> None:
    job = machine(ANN, "job", "start", "--memory", "1GiB", "--", "id", "-un").stdout.split()[-1]
    shown = until(lambda: (s := machine(ANN, "job", "show", job).stdout) and "ended" in s and s, what="the job's end")
    assert ANN.name in shown
    link = machine(ANN, "login", "--link").stdout.strip()
    assert link.startswith(pool.client.get("/v1/status")["console"] + "/login#")
    token = machine(ANN, "user", "token", "create").stdout.strip()
    with urllib.request.urlopen(
        urllib.request.Request(link.partition("/login")[0] + "/v1/me", headers={"Authorization": f"Bearer {token}"}),
        timeout=HANG_S,
    ) as answer:
        assert json.load(answer)["user"] == ANN.name


def test_commands_for_administrators_are_refused_by_the_pool_of_root(pool: World, machine: Machine) -> None:
    for words in (("queue", "create", "mine"), ("device", "drain", "0"), ("down",)):
        done = machine(ANN, *words, code=4)
        assert "hint: " in done.stderr
    assert pool.client.get("/v1/status")["devices"] == 2


def test_commands_that_use_the_pools_own_files_say_whose_files_these_are(pool: World, machine: Machine) -> None:
    commands: tuple[tuple[str, ...], ...] = (
        ("backup", "create", str(machine.home / "b")),
        ("net", "doctor"),
        ("net", "fabric", "run", "--once"),
        ("remote", "server", "status"),
        ("remote", "server", "down"),
        ("remote", "server", "token", "list"),
        ("remote", "server", "token", "create", "vision"),
    )
    for words in commands:
        done = machine(ANN, *words, code=4)
        assert f"the home of the system pool, {SYSTEM_HOME}, belongs to root" in done.stderr, done.stderr
        assert "hint: run it as root" in done.stderr
    assert "nodes of the system pool belong to root" in machine(ANN, "sim", "show", pool.sim, code=3).stderr


def test_a_named_pool_and_a_pool_of_the_users_own_come_before_the_pool_of_root(pool: World, machine: Machine) -> None:
    named = machine(ANN, "ps", code=1, CALABASH_HOME="/usr/games/none")
    assert "no pool answers at /usr/games/none" in named.stderr
    own = machine.home / ".local/share/calabash"
    machine(ANN, "sim", "create", "own", "--gpus", "1xT4")
    machine(ANN, "up", "--sim", "own")
    try:
        assert machine.json(ANN, "status")["home"] == str(own)
    finally:
        machine(ANN, "down")
    assert machine.json(ANN, "status")["home"] == str(pool.home), "it is down, so the pool of root is the one"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(own / SOCKET_FILE))
        os.chown(own / SOCKET_FILE, ANN.uid, ANN.gid)
    done = machine(ANN, "ps", code=1)
    assert f"no pool answers at {own}" in done.stderr
    assert f"CALABASH_HOME={SYSTEM_HOME}" in done.stderr


def test_a_second_pool_of_the_devices_is_warned_of(pool: World, machine: Machine) -> None:
    done = machine(ANN, "up", code=None)
    assert "warning: root's pool already serves the devices of this machine" in done.stderr
    machine(ANN, "down", "--force", code=None)


def test_a_user_without_a_home_directory_uses_the_pool_of_root(pool: World, machine: Machine) -> None:
    for home in ("/nonexistent", "/root/none", ""):
        done = machine(EVE, "doctor", HOME=home)
        assert f"root's pool at {SYSTEM_HOME} is used" in done.stdout
    assert machine.json(EVE, "status")["home"] == str(pool.home)


def test_a_pool_of_root_that_is_down_is_named(pool: World, machine: Machine) -> None:
    pool.kill(signal.SIGKILL)
    done = machine(ANN, "ps", code=1)
    assert f"no pool answers at {SYSTEM_HOME}" in done.stderr
    assert "hint: root starts this pool" in done.stderr


def test_without_any_pool_the_users_own_is_named(machine: Machine) -> None:
    done = machine(ANN, "ps", code=1)
    assert f"no pool answers at {machine.home}/.local/share/calabash" in done.stderr
    assert "calabash up" in done.stderr


# -- access to the product's files -----------------------------------------------------------------------------


def _without_rights(machine: Machine, directory: Path) -> None:
    """Make a directory of the product inaccessible to other users, in the mount namespace of ``machine`` only."""
    copy = machine.directory / directory.name
    shutil.copytree(directory, copy)
    copy.chmod(0o750)
    machine.root(f"mount --bind {copy} {directory}")


def test_a_program_whose_user_cannot_read_the_shim_is_not_started(pool: World, machine: Machine) -> None:
    _without_rights(machine, NATIVE / "lib")
    done = machine(ANN, "run", "--memory", "1GiB", "--", "echo", "ran", code=4)
    assert done.stdout == ""
    assert f"cannot read {NATIVE}/lib/libcalabash.so" in done.stderr
    assert "calabash doctor" in done.stderr
    until(lambda: not pool.allocations(), what="its slice to be given back")


def test_doctor_of_root_tries_what_other_users_need(pool: World, machine: Machine) -> None:
    def others() -> dict[str, tuple[str, str, str]]:
        found = machine.json(None, "doctor")["items"]
        prefix = "other users: "
        return {
            f["check"].removeprefix(prefix): (f["result"], f["text"], f["hint"])
            for f in found
            if f["check"].startswith(prefix)
        }

    assert {name: result for name, (result, _, _) in others().items()} == dict.fromkeys(
        ("command", "shim", "socket"), "ok"
    )
    _without_rights(machine, NATIVE / "lib")
    machine.root("chmod 0710 /var/lib")
    found = others()
    assert found["command"][0] == "ok"
    assert found["shim"] == (
        "warn",
        f"other users cannot use it: {NATIVE}/lib has mode 0750",
        f"chmod o+x {NATIVE}/lib",
    )
    assert found["socket"] == ("warn", "other users cannot use it: /var/lib has mode 0710", "chmod o+x /var/lib")


# -- planted pools ---------------------------------------------------------------------------------------------


class Planted:
    """Server that a hostile user has put at the path of the system pool. It records its input and never answers.

    Its socket is bound by one user and made to listen by another.
    """

    def __init__(self, path: Path, user: User) -> None:
        self.received: list[bytes] = []
        self.connections = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        path.chmod(0o666)
        os.seteuid(user.uid)
        try:
            self._socket.listen(8)  # the kernel remembers this user for those who connect
        finally:
            os.seteuid(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.connections += 1
                connection.settimeout(HANG_S)
                self.received.append(connection.recv(1 << 16))

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._thread.join(HANG_S)


@contextmanager
def planted(machine: Machine, user: User, *, owner: int) -> Iterator[Planted]:
    """Run a planted server at the fixed path; its socket and directory belong to ``owner``."""
    place = machine.directory / "planted"
    place.mkdir()
    with closing(Planted(place / SOCKET_FILE, user)) as made:
        for path in (place, place / SOCKET_FILE):
            os.chown(path, owner, owner)
        machine.root(f"mkdir {SYSTEM_HOME} && mount --bind {place} {SYSTEM_HOME}")
        yield made


def _refused_with_nothing_sent(machine: Machine, fake: Planted, why: str) -> None:
    for words in (("ps",), ("run", "--memory", "1GiB", "--", "true"), ("run", "--wait", "5s", "--", "true")):
        done = machine(ANN, *words, code=4)
        assert why in done.stderr, done.stderr
        assert "hint: " in done.stderr
    fake.close()
    assert b"".join(fake.received) == b""


def test_a_pool_socket_on_which_another_user_listens_is_sent_nothing(machine: Machine) -> None:
    with planted(machine, EVE, owner=0) as fake:
        _refused_with_nothing_sent(machine, fake, f"user id {EVE.uid} listens there, not root")
        assert fake.connections == 3, "the files are root's; only the kernel knows who listens"


def test_a_directory_of_another_user_at_the_fixed_path_is_not_connected_to(machine: Machine) -> None:
    with planted(machine, EVE, owner=EVE.uid) as fake:
        _refused_with_nothing_sent(machine, fake, f"{SYSTEM_HOME} belongs to user id {EVE.uid}, not to root")
        assert fake.connections == 0


@pytest.mark.parametrize("mode", ["0757", "0775", "1777"])
def test_a_directory_that_others_can_write_to_is_not_connected_to(machine: Machine, mode: str) -> None:
    with planted(machine, EVE, owner=0) as fake:
        machine.root(f"chmod {mode} /var/lib")
        _refused_with_nothing_sent(machine, fake, f"/var/lib has mode {mode}")
        assert fake.connections == 0


def test_a_socket_of_another_user_in_a_directory_of_root_is_not_connected_to(machine: Machine) -> None:
    with planted(machine, EVE, owner=0) as fake:
        machine.root(f"chown {EVE.uid} {SYSTEM_HOME}/{SOCKET_FILE}")
        _refused_with_nothing_sent(machine, fake, f"{SYSTEM_HOME}/{SOCKET_FILE} belongs to user id {EVE.uid}")
        assert fake.connections == 0


def test_links_are_followed_where_root_alone_can_change_them(pool: World, machine: Machine) -> None:
    """A link inside the target of a link counts too: the directory of the second link may be another user's."""
    machine.root(f"umount {SYSTEM_HOME}; rmdir {SYSTEM_HOME}; mkdir -p /var/lib/a/b /var/lib/real")
    machine.root(
        f"mount --bind {pool.home} /var/lib/real && ln -s a/b/../b/next {SYSTEM_HOME} && ln -s /var/lib/real /var/lib/a/b/next"
    )
    assert machine.json(ANN, "status")["home"] == str(pool.home)
    machine.root(f"chown -h {EVE.uid} /var/lib/a/b/next")
    assert f"/var/lib/a/b/next belongs to user id {EVE.uid}" in machine(ANN, "ps", code=4).stderr
    machine.root(f"chown -h 0 /var/lib/a/b/next && chown {EVE.uid} /var/lib/a/b")
    assert f"/var/lib/a/b belongs to user id {EVE.uid}" in machine(ANN, "ps", code=4).stderr
    machine.root(f"chown 0 /var/lib/a/b && rm /var/lib/a/b/next && ln -s {SYSTEM_HOME} /var/lib/a/b/next")
    assert "no pool answers" in machine(ANN, "ps", code=1).stderr, "links that lead in a circle lead to no pool"
