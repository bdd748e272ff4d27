"""Process that starts commands as other users: single-threaded, with all modules imported, one fork per command.

The soak itself has many threads and must not fork; and an interpreter in root's own directory cannot be started by another
user. So the launcher is forked before there are threads: it forks, becomes the user, and enters ``calabash`` where its console
script would.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

_MESSAGE_BYTES_MAX = 1 << 17


@dataclass(slots=True)
class Started:
    """A started command. ``code`` is set when it has ended, at ``ended_at`` as the kernel reported to the launcher."""

    output: Path
    pid: int = 0
    code: int | None = None
    ended_at: float = 0.0
    known: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


class Launcher:
    """Client of the launcher process. Create it before any thread."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _serve(theirs)
        theirs.close()
        self._lock = threading.Lock()
        self._started: dict[int, Started] = {}
        self._reader: threading.Thread | None = None

    def start(
        self,
        words: Sequence[str],
        *,
        user: str,
        environment: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
    ) -> Started:
        """Start ``calabash`` with these words as an account ("": this process's own). Returns when it has a pid.

        Both output streams go into ``output``, or errors into a file of their own.
        """
        found = Started(output=output)
        with self._lock:
            number = len(self._started)
            self._started[number] = found
            order = {"id": number, "words": list(words), "user": user, "env": dict(environment), "out": str(output)}
            order["err"] = str(errors or "")
            self._socket.sendall(json.dumps(order).encode())
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, name="launched", daemon=True)
                self._reader.start()
        found.known.wait()
        return found

    def _read(self) -> None:
        while data := self._socket.recv(_MESSAGE_BYTES_MAX):
            told = json.loads(data)
            with self._lock:
                one = self._started[told["id"]]
            if "pid" in told:
                one.pid = told["pid"]
                one.known.set()
            else:
                one.code, one.ended_at = told["code"], told["at"]
                one.ended.set()

    def close(self) -> None:
        """Close the connection; started commands go on."""
        self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader is not None:
            self._reader.join()
        self._socket.close()
        os.waitpid(self.pid, 0)


def _serve(asked: socket.socket) -> NoReturn:
    """Serve orders until the other side closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    asked.settimeout(None)
    children: dict[int, int] = {}
    waking, woken = os.pipe()
    for end in (waking, woken):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    code = 0
    try:
        _loop(asked, children, waking)
    except Exception as error:
        os.write(2, f"the launcher ended: {error!r}\n".encode())
        code = 1
    os._exit(code)


def _loop(asked: socket.socket, children: dict[int, int], waking: int) -> None:
    import select  # noqa: PLC0415 - for its poll alone

    _warm_up()
    looking = select.poll()
    looking.register(asked, select.POLLIN)
    looking.register(waking, select.POLLIN)
    while True:
        ready = {number for number, _ in looking.poll()}
        if waking in ready:
            os.read(waking, 4096)
        _reap(asked, children)
        if asked.fileno() in ready:
            data = asked.recv(_MESSAGE_BYTES_MAX)
            if not data:
                return
            order = json.loads(data)
            pid = os.fork()
            if pid == 0:
                _become(order)
            children[pid] = order["id"]
            asked.sendall(json.dumps({"id": order["id"], "pid": pid}).encode())


def _warm_up() -> None:
    """Import the modules that commands need, because another account may not be able to read them later."""
    from calabash.cli.commands import invoke  # noqa: PLC0415

    silent = os.open(os.devnull, os.O_WRONLY)
    kept = os.dup(1)
    os.dup2(silent, 1)
    for words in (["job", "start", "--help"], ["ps", "--help"]):
        with suppress(SystemExit):
            invoke(words)
    os.dup2(kept, 1)
    os.close(kept)
    os.close(silent)


def _reap(asked: socket.socket, children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        number = children.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        asked.sendall(json.dumps({"id": number, "code": code, "at": time.time()}).encode())


def _become(order: dict[str, Any]) -> NoReturn:
    """Run the command in this process. It ends as the console script would."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        empty = os.open(os.devnull, os.O_RDONLY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        output = os.open(order["out"], flags, 0o644)
        errors = os.open(order["err"], flags, 0o644) if order["err"] else output
        for number, descriptor in enumerate((empty, output, errors)):
            os.dup2(descriptor, number)
        os.closerange(3, 4096)
        os.chdir("/")
        os.setsid()
        if order["user"]:
            _be(order["user"])
        os.environ.clear()
        os.environ.update(order["env"])
        from calabash.cli.main import main  # noqa: PLC0415

        entering: Callable[[list[str]], object] = main
        entering(order["words"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as error:
        os.write(2, f"broken: {error!r}\n".encode())
    os._exit(code)


def _be(user: str) -> None:
    account = pwd.getpwnam(user)
    os.initgroups(user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
