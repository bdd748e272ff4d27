"""Users for attacks: uids without an account on this machine. The processes of a user are forked children of the test.

The repository may be readable by root only, so such a user runs either a C program in the pool's own directory or a
function of this process in a forked child that has become the user.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.api_client import PathClient
from tests.daemons.world import HANG_S, until

from calabash.adapters.host.readable import readable
from calabash.model.errors import CalabashError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def processes_of(uid: int) -> Iterator[int]:
    """Yield the living processes of a user."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_bytes()
                if entry.stat().st_uid == uid and stat[stat.rfind(b")") + 2 :][:1] not in b"ZX":
                    yield int(entry.name)
            except OSError:
                continue


class Child:
    """Forked child that has become a user. Its output is read through a pipe."""

    def __init__(self, uid: int, act: Callable[[], None]) -> None:
        self._from_child, said = os.pipe()
        heard, self.stdin = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(heard, 0)
                os.dup2(said, 1)
                os.dup2(said, 2)
                os.closerange(3, 4096)
                become(uid, parent)
                act()
            except CalabashError as error:
                os.write(1, f"refused {error.reason}: {error.message}\n".encode())
            except BaseException:
                os.write(1, f"broken {traceback.format_exc()}\n".encode())
            os._exit(1)
        os.close(said)
        os.close(heard)
        os.set_blocking(self._from_child, False)
        self.output = b""
        self.code: int | None = None

    def _read(self) -> bool:
        """Read its output; return True if more may come."""
        try:
            while chunk := os.read(self._from_child, 65536):
                self.output += chunk
        except BlockingIOError:
            return True
        return False

    def text(self) -> str:
        self._read()
        return self.output.decode(errors="replace")

    def says(self, text: str) -> bool:
        return text in self.text()

    def line(self, *, within_s: float = HANG_S) -> str:
        """Return the next whole line of its output."""

        def whole() -> bool:
            more = self._read()  # its children may go on writing after its end
            return b"\n" in self.output or not more

        until(whole, within_s=within_s, what=f"a line after {self.output!r}")
        first, whole_line, self.output = self.output.partition(b"\n")
        assert whole_line, f"it ended with {self.code} after {first!r}, alive: {self.alive()}"
        return first.decode(errors="replace")

    def wait_text(self, *, within_s: float) -> str:
        """Wait for its end; return all output."""
        deadline = time.monotonic() + within_s
        while self._read():
            left = deadline - time.monotonic()
            assert left > 0, f"child {self.pid} was not done within {within_s} s: {self.output!r}"
            readable(self._from_child, left)
        return self.output.decode(errors="replace")

    def alive(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def dead(self) -> bool:
        return not self.alive()

    def let_end(self) -> None:
        """Close its standard input, upon which the programs of the tests end."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def close(self) -> None:
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
        self.let_end()
        until(self.dead, what="a killed child to be gone")
        if self._from_child >= 0:
            os.close(self._from_child)
            self._from_child = -1


def become(uid: int, parent: int) -> None:
    """Give up root's rights for good; end with the parent process."""
    os.chdir("/")
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class User:
    """User with a uid of its own; ``home`` is the home directory of the pool."""

    def __init__(self, uid: int, home: Path) -> None:
        self.uid = uid
        self.home = home
        self.children: list[Child] = []

    def does(self, function: Callable[..., Any], *arguments: Any, within_s: float = HANG_S) -> Any:
        """Call a function as this user; return its result (JSON) or fail with its exception."""

        def act() -> None:
            answer = json.dumps(function(*arguments))
            os.write(1, f"\ndone {answer}\n".encode())

        child = Child(self.uid, act)
        try:
            text = child.wait_text(within_s=within_s)
        finally:
            child.close()
        _, done, answer = text.rpartition("\ndone ")
        assert done, text
        return json.loads(answer)

    def keeps(self, function: Callable[..., None], *arguments: Any) -> Child:
        """Call a function as this user in the background, until the test or the function ends."""
        return self._kept(Child(self.uid, lambda: function(*arguments)))

    def runs(self, *command: str | Path, environment: dict[str, str] | None = None, **body: Any) -> Child:
        """Start a program on a slice, as ``calabash run`` does."""
        words = [str(word) for word in command]
        return self._kept(Child(self.uid, lambda: run_on_slice(self.home, words, environment or {}, body)))

    def starts(self, *command: str | Path, environment: dict[str, str]) -> Child:
        """Start a program without a slice."""
        words = [str(word) for word in command]
        return self._kept(Child(self.uid, lambda: os.execve(words[0], words, environment)))

    def _kept(self, child: Child) -> Child:
        self.children.append(child)
        return child

    def processes(self) -> list[int]:
        return list(processes_of(self.uid))

    def vanish(self) -> None:
        """End all processes of this user."""
        for child in self.children:
            child.close()
        self.children.clear()

        def none_left() -> bool:
            left = self.processes() if self.uid else []
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not left

        until(none_left, what=f"the processes of {self.uid} to be gone")


def run_on_slice(home: Path, command: list[str], environment: dict[str, str], body: dict[str, Any]) -> None:
    """Do what ``calabash run`` does: request from within the process that executes the program."""
    wanted = {"command": command, "enter": True, **body}
    granted = PathClient(home).post("/v1/allocations", wanted, timeout_s=body.get("wait_s", 0) + 30)
    assert granted["state"] == "running", granted
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(command[0], command, {"PATH": "/usr/bin:/bin", **granted["environment"], **environment})
