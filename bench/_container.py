"""Minimal container runtime for ``_driven``: ``python _container.py SOCKET`` runs inside a cluster's namespaces.

Each connection is one start of a container: a line of JSON (``group``, ``root``, ``mounts``, ``env``, ``argv``), after which
the connection is the program's standard input and output. The program runs in its own control group and mount namespace and
sees only its root and the mounts in it, as in a container of a real runtime.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNS = 0x20000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18
_DETACH = 2
_PIVOT_ROOT = 155 if os.uname().machine == "x86_64" else 41
_WORDS = {"ro": _RDONLY, "nosuid": _NOSUID, "nodev": _NODEV, "noexec": _NOEXEC}


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def bind(source: str, target: Path, words: list[str]) -> None:
    if not target.exists():
        if os.path.isdir(source):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    where = os.fsencode(target)
    check(_libc.mount(os.fsencode(source), where, None, _BIND | _REC, None), f"{source} on {target}")
    flags = sum(_WORDS.get(word, 0) for word in words)
    if flags:
        check(_libc.mount(None, where, None, _BIND | _REMOUNT | flags, None), f"{target} for reading")


def become(request: dict[str, Any], connection: socket.socket) -> None:
    """Replace this process by the container's program."""
    (Path(request["group"]) / "cgroup.procs").write_text("0\n")
    root = Path(request["root"])
    check(_libc.unshare(_NEWNS), "unshare")
    check(_libc.mount(b"none", b"/", None, _REC | _PRIVATE, None), "a name space of mounts")
    bind(str(root), root, [])
    for source, target, words in request["mounts"]:
        bind(source, root / target.lstrip("/"), words)
    check(_libc.mount(b"proc", os.fsencode(root / "proc"), b"proc", _NOSUID | _NODEV | _NOEXEC, None), "/proc")
    os.chdir(root)
    check(_libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(_libc.umount2(b".", _DETACH), "the root outside")
    os.chdir("/")
    for number in (0, 1, 2):
        os.dup2(connection.fileno(), number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.execve(request["argv"][0], request["argv"], request["env"])


def line_of(connection: socket.socket) -> bytes:
    """Read the line of JSON; the client sends nothing behind it before the program runs."""
    text = b""
    while not text.endswith(b"\n") and (more := connection.recv(1 << 16)):
        text += more
    return text


def main(path: str) -> None:
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # exit statuses are not needed: a client reads until the connection ends
    # Unlike the first process of a PID namespace, programs end by SIGTERM: one that an agent sends wrongly loses a start.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(256)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                try:
                    become(json.loads(line_of(connection)), connection)
                except BaseException as error:
                    connection.sendall(f"cannot be made: {error!r}\n".encode())
                os._exit(1)
            connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
