"""Random steps of a hostile user, each bounded in time and in what it leaves behind.

Everything here runs in a forked child that has become the user. The state file of the simulated node is not attacked,
because it represents the hardware.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.people import run_on_slice

STEP_S = 5
PACE_S = 0.003  # the attack is on the pool, and not on the machine's processors
PAUSE_S = 0.1
PROGRAMS_MAX = 5
CONNECTIONS_MAX = 60
_KEPT = 1000
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "BREW")
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Hostile:
    """Hostile user in its own process.

    Args:
        home: home directory of the attacked pool.
        kernels: file with the GPU kernels that the hostile program launches.
        victims: process IDs of other users' processes, which are attacked.
        random: source of random choices.
        opened: descriptors that are kept open.
        parked: socket pairs in which descriptors are kept that this process has closed.
    """

    home: Path
    hostile: Path  # the program of that name
    kernels: Path
    victims: list[int]
    random: random.Random
    connections: list[socket.socket] = field(default_factory=list)
    programs: list[tuple[int, int]] = field(default_factory=list)  # pid, its standard input
    opened: list[int] = field(default_factory=list)
    parked: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)

    # -- helpers -----------------------------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(1)
        try:
            sock.connect(str(self.home / "pool.sock"))
        except OSError:
            sock.close()
            raise
        return sock

    def park(self, sock: socket.socket) -> None:
        self.connections.append(sock)
        while len(self.connections) > CONNECTIONS_MAX:
            self.connections.pop(self.random.randrange(len(self.connections))).close()

    def send(self, data: bytes, *, read: bool = True, park: bool = False) -> bytes:
        sock = self.connect()
        answer = b""
        try:
            with contextlib.suppress(OSError):
                sock.sendall(data)
                if read:
                    answer = sock.recv(65536)
        finally:
            if park:
                self.park(sock)
            else:
                sock.close()
        return answer

    def slots(self) -> list[Path]:
        """Return this user's slots, found as any user can: through their programs."""
        found = []
        for pid, _ in self.programs:
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found += [Path(os.fsdecode(e[14:])) for e in environment if e.startswith(b"CALABASH_SLOT=")]
        return found

    def usage(self, flags: int = os.O_RDWR) -> int | None:
        slots = self.slots()
        if not slots:
            return None
        try:
            found = os.open(self.random.choice(slots) / "usage", flags | os.O_NONBLOCK)
        except OSError:
            return None
        self.opened.append(found)
        while len(self.opened) > 100:
            os.close(self.opened.pop(0))
        return found

    def body(self) -> dict[str, Any]:
        """Return a request body, valid or not."""
        choose = self.random.choice
        wild = [0, -1, 1, 2**31, 2**63, 2**70, 1.5, "", "1", None, True, [], {}, "\0", "é" * 300, "../..", "x" * 5000]
        body: dict[str, Any] = {"memory_mib": choose([16, 256, 1024]), "cores": choose([1, 5, 10])}
        for name in ("gpus", "mode", "policy", "tenant", "queue", "gang", "gang_size", "wait_s", "priority", "command"):
            if self.random.random() < 0.12:
                body[name] = choose(wild)
        if self.random.random() < 0.3:
            body["wait_s"] = choose([0.1, 30, 86_400])
        return body

    def path(self) -> str:
        part = self.random.choice(["status", "devices", "allocations", "queues", "events", "scenario", "nothing", ".."])
        more = self.random.choice(
            ["", "/", "?all=1", "?after=-1", "?after=99999999999", "/default", "/a%00b", "/%2e%2e"]
        )
        return f"/v1/{part}{more}"

    def spawn(self, act: Callable[[], object]) -> tuple[int, int]:
        """Fork a child that calls ``act``; return its process ID and a descriptor that writes to its standard input.

        Of the descriptors of this process the child keeps only ``_KEPT``, as descriptor 3.
        """
        heard, stdin = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(0)
            with contextlib.suppress(BaseException):
                null = os.open("/dev/null", os.O_RDWR)
                os.dup2(heard, 0)
                os.dup2(null, 1)
                os.dup2(null, 2)
                with contextlib.suppress(OSError):
                    os.dup2(_KEPT, 3)
                os.closerange(4, 4096)
                act()
            os._exit(1)
        os.close(heard)
        return pid, stdin

    def program(self, *words: object, **more: Any) -> None:
        body = {"memory_mib": self.random.choice([512, 1024]), "cores": self.random.choice([1, 5, 10])} | more
        command = [str(self.hostile), *(str(w) for w in words)]
        self.programs.append(self.spawn(lambda: run_on_slice(self.home, command, {}, body)))
        while len(self.programs) > PROGRAMS_MAX:
            self.end(self.programs.pop(0))

    @staticmethod
    def end(program: tuple[int, int]) -> None:
        os.close(program[1])
        with contextlib.suppress(ProcessLookupError):
            os.kill(program[0], signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(program[0], 0)


def _http(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


# -- API ---------------------------------------------------------------------------------------------------------


def malformed(me: Hostile) -> None:
    whole = bytearray(_http(me.random.choice(_METHODS), me.path(), json.dumps(me.body()).encode()))
    for _ in range(me.random.randrange(1, 8)):
        whole[me.random.randrange(len(whole))] = me.random.randrange(256)
    me.send(bytes(whole))


def noise(me: Hostile) -> None:
    me.send(me.random.randbytes(me.random.choice([1, 100, 70_000])), read=False)


def huge(me: Hostile) -> None:
    me.send(_http("POST", "/v1/allocations", b"[" * me.random.choice([1000, 100_000, 2_000_000])))


def endless_head(me: Hostile) -> None:
    me.send(b"GET /v1/status HTTP/1.1\r\nX: " + b"x" * 200_000, read=False)


def half_open(me: Hostile) -> None:
    whole = _http("POST", "/v1/allocations", json.dumps(me.body()).encode())
    me.send(whole[: me.random.randrange(len(whole))], read=False, park=True)


def pipelined(me: Hostile) -> None:
    sock = me.connect()
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.send(_http("GET", me.path()) * 50)
    me.park(sock)


def ask_and_hang_up(me: Hostile) -> None:
    me.send(_http("POST", "/v1/allocations", json.dumps(me.body()).encode()), read=me.random.random() < 0.5)


def ask_and_wait(me: Hostile) -> None:
    body = me.body() | {"gpus": 2, "mode": "exclusive", "wait_s": 3600}
    me.send(_http("POST", "/v1/allocations", json.dumps(body).encode()), read=False, park=True)


def read_anything(me: Hostile) -> None:
    me.send(_http("GET", me.path()))


def release_anything(me: Hostile) -> None:
    listed = me.send(_http("GET", "/v1/allocations"))
    ids = [word.split(b'"')[2] for word in listed.split(b'"id') if word.count(b'"') > 2]
    target = os.fsdecode(me.random.choice(ids or [b"none"]))
    me.send(_http("DELETE", f"/v1/allocations/{target}?force=1"))


def change_queues(me: Hostile) -> None:
    me.send(_http(me.random.choice(["PUT", "DELETE"]), "/v1/queues/default", b'{"deserved": 2}'))


def claim_to_have_started(me: Hostile) -> None:
    listed = me.send(_http("GET", "/v1/allocations"))
    ids = [word.split(b'"')[2] for word in listed.split(b'"id') if word.count(b'"') > 2]
    target = os.fsdecode(me.random.choice(ids or [b"none"]))
    pid = me.random.choice([*me.victims, 1, 2**31])
    me.send(_http("POST", f"/v1/allocations/{target}/started", json.dumps({"pid": pid}).encode()))


# -- programs, forks and signals ---------------------------------------------------------------------------------


def run_program(me: Hostile) -> None:
    how = me.random.choice(["hold", "loose", "daemon", "contexts", "handles", "forge", "forge"])
    if how == "forge":
        what = me.random.choice(["charged", "bucket", "demand", "nonsense"])
        me.program("forge", what, me.kernels, me.random.choice([100, 1000, 5000]))
    else:
        me.program(how, me.random.choice([16, 500, 5000]))


def end_program(me: Hostile) -> None:
    if me.programs:
        me.end(me.programs.pop(me.random.randrange(len(me.programs))))


def signal_own(me: Hostile) -> None:
    if me.programs:
        number = me.random.choice([signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL])
        with contextlib.suppress(ProcessLookupError):
            os.kill(me.random.choice(me.programs)[0], number)


def signal_others(me: Hostile) -> None:
    for pid in me.victims:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.kill(pid, me.random.choice([signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM]))


def fork_many(me: Hostile) -> None:
    def act() -> None:
        for _ in range(10):
            if os.fork() == 0:
                os.setsid()
                time.sleep(me.random.random() / 5)
                os._exit(0)

    pid, stdin = me.spawn(act)
    os.close(stdin)
    os.waitpid(pid, 0)


def change_cgroup(me: Hostile) -> None:
    for pid in [os.getpid(), *(p for p, _ in me.programs)]:
        with contextlib.suppress(OSError):
            line = next(x for x in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if x.startswith("0::"))
            place = Path("/sys/fs/cgroup/unified" + line[3:])
            for target, what in (
                (place / "cgroup.kill", "1"),
                (place / "cgroup.freeze", "1"),
                (place.parent / "cgroup.procs", "0"),
            ):
                with contextlib.suppress(OSError):
                    target.write_text(what)
            with contextlib.suppress(OSError):
                (place / "mine").mkdir()


# -- pages, files, descriptors, leases and locks -----------------------------------------------------------------


def write_page(me: Hostile) -> None:
    file = me.usage()
    if file is not None:
        size = max(1, os.fstat(file).st_size)
        with contextlib.suppress(OSError):
            os.pwrite(file, me.random.randbytes(me.random.choice([1, 8, 4096])), me.random.randrange(size))


def map_page(me: Hostile) -> None:
    file = me.usage()
    if file is None:
        return
    copy = os.dup2(file, _KEPT)
    seed = me.random.getrandbits(32)

    def act() -> None:  # in a child: a page that is shortened meanwhile ends the process that accesses it
        chance = random.Random(seed)
        with mmap.mmap(3, 0) as memory:
            for _ in range(100):
                at = chance.randrange(4096, len(memory) - 8) & ~7
                struct.pack_into("<Q", memory, at, chance.choice([0, 1, 2**63, 2**64 - 1, chance.getrandbits(64)]))

    pid, stdin = me.spawn(act)
    os.close(stdin)
    os.close(copy)
    os.waitpid(pid, 0)


def resize_page(me: Hostile) -> None:
    file = me.usage()
    if file is not None:
        with contextlib.suppress(OSError):
            os.ftruncate(file, me.random.choice([0, 1, 4096, 8192, 2**30, 2**40]))


def punch_page(me: Hostile) -> None:
    file = me.usage()
    if file is not None:
        size = max(4096, os.fstat(file).st_size)
        start = ctypes.c_int64(me.random.randrange(size) & ~4095)
        _libc.fallocate(file, me.random.choice([0, _KEEP_SIZE, _PUNCH_HOLE | _KEEP_SIZE]), start, ctypes.c_int64(2**20))


def append_page(me: Hostile) -> None:
    file = me.usage(os.O_WRONLY | os.O_APPEND)
    if file is not None:
        with contextlib.suppress(OSError):
            os.write(file, bytes(2**20))


def _lease(file: int, kind: int) -> None:
    fcntl.fcntl(file, fcntl.F_SETLEASE, kind & ~fcntl.LOCK_NB)


def lock_anything(me: Hostile) -> None:
    """Take locks and leases (fcntl F_SETLEASE) on all files that this user can open. They last until the file is closed."""
    paths = [p for slot in me.slots() for p in (slot / "usage", slot / "limits", slot / "lease")]
    for path in [*paths, *(me.home / name for name in ("pool.db", "pool.db-shm", "pool.lock", "arbiter.lock"))]:
        for flags in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(OSError):
                file = os.open(path, flags | os.O_NONBLOCK)
                me.opened.append(file)
                for take, how in ((fcntl.flock, fcntl.LOCK_EX), (fcntl.lockf, fcntl.LOCK_EX), (_lease, fcntl.F_RDLCK)):
                    with contextlib.suppress(OSError):
                        take(file, how | fcntl.LOCK_NB)
                with contextlib.suppress(OSError):
                    _lease(file, fcntl.F_WRLCK)


def change_files(me: Hostile) -> None:
    places = [me.home, me.home / "alloc", *me.slots()]
    place = me.random.choice(places)
    name = me.random.choice(["pool.db", "pool.sock", "limits", "usage", "lease", "new", ".gone-x", ".new-y"])
    acts: tuple[Callable[[], object], ...] = (
        lambda: os.unlink(place / name),
        lambda: os.rename(place / name, place / "other"),
        lambda: os.symlink("/etc/passwd", place / name),
        lambda: os.mkdir(place / name),
        lambda: os.chmod(place / name, 0o777),
        lambda: os.setxattr(place / name, "system.posix_acl_access", b"\2\0\0\0"),
        lambda: os.truncate(place / name, 0),
        lambda: os.link(place / name, place / "link"),
        lambda: os.mkfifo(place / name),
    )
    for act in acts:
        with contextlib.suppress(OSError):
            act()


def park_descriptors(me: Hostile) -> None:
    if me.opened:
        left, right = socket.socketpair(socket.AF_UNIX)
        sent = array.array("i", me.opened[-5:])
        with contextlib.suppress(OSError):
            left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
        me.parked.append((left, right))
        while len(me.parked) > 10:
            for sock in me.parked.pop(0):
                sock.close()


def close_descriptors(me: Hostile) -> None:
    for file in me.opened:
        os.close(file)
    me.opened.clear()


STEPS: tuple[Callable[[Hostile], None], ...] = (
    malformed,
    noise,
    huge,
    endless_head,
    half_open,
    pipelined,
    ask_and_hang_up,
    ask_and_wait,
    read_anything,
    release_anything,
    change_queues,
    claim_to_have_started,
    run_program,
    end_program,
    signal_own,
    signal_others,
    fork_many,
    change_cgroup,
    write_page,
    map_page,
    resize_page,
    punch_page,
    append_page,
    lock_anything,
    change_files,
    park_descriptors,
    close_descriptors,
)


class _LateError(Exception):
    pass


def _late(_number: int, _frame: object) -> None:
    raise _LateError


def go(me: Hostile, steps: int, seed: int) -> None:
    """Do so many random steps and print how often each was done. Then keep all resources until standard input ends."""
    signal.signal(signal.SIGALRM, _late)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    me.random.seed(seed)
    done: collections.Counter[str] = collections.Counter()
    stopped: collections.Counter[str] = collections.Counter()
    while sum(done.values()) < steps:
        step = me.random.choice(STEPS)
        signal.alarm(STEP_S)
        try:
            step(me)
        except (FileNotFoundError, ConnectionRefusedError):  # the pool is being started again
            time.sleep(PAUSE_S)
            continue
        except (OSError, _LateError) as error:
            stopped[f"{step.__name__} by {type(error).__name__}"] += 1
        finally:
            signal.alarm(0)
        done[step.__name__] += 1
        time.sleep(PACE_S)
    os.write(1, f"\ndone {json.dumps({'done': done, 'stopped': stopped})}\n".encode())
    select.select([0], [], [])
