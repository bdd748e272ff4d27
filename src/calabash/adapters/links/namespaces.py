"""Network namespaces with a name below ``/run/netns``, where ``ip netns`` finds them too."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

DIRECTORY = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 1 << 20
_MNT_DETACH = 2
_ITSELF = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)

Answer = TypeVar("Answer")


def path_of(name: str) -> Path:
    """Where a namespace of that name is or would be."""
    return DIRECTORY / name


def names(prefix: str) -> list[str]:
    """Those that begin so; also such as a crash has left half made."""
    try:
        return sorted(name for name in os.listdir(DIRECTORY) if name.startswith(prefix))
    except FileNotFoundError:
        return []


def exists(name: str) -> bool:
    """Whether it is a whole namespace; a name to which none is bound lies on another file system."""
    try:
        return os.stat(path_of(name)).st_dev == os.stat(_ITSELF).st_dev
    except OSError:
        return False


def create(name: str) -> None:
    """Make one with nothing in it but ``lo``; one of that name is kept. Raises OSError and then leaves no name."""
    if exists(name):
        return
    _share_directory()
    path = path_of(name)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
    try:
        _in_thread(lambda: _bind_new(path))
    except BaseException:
        remove(name)
        raise


def remove(name: str) -> None:
    """Take the name away, and with it the namespace once nobody is in it; nothing where there is none."""
    path = path_of(name)
    while _libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
        pass  # two that made it at once have bound it twice
    path.unlink(missing_ok=True)


def inside(path: Path | None, work: Callable[[], Answer]) -> Answer:
    """What ``work`` answers in the namespace at ``path``; None: where this process is. Raises OSError where there is none."""
    if path is None:
        return work()

    def enter() -> Answer:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_libc.setns(descriptor, _CLONE_NEWNET), f"setns {path}")
        finally:
            os.close(descriptor)
        return work()

    return _in_thread(enter)


def _in_thread(work: Callable[[], Answer]) -> Answer:
    answers: list[Answer] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="links", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return answers[0]


def _bind_new(path: Path) -> None:
    _checked(_libc.unshare(_CLONE_NEWNET), "unshare")
    _checked(_libc.mount(_ITSELF.encode(), os.fsencode(path), b"none", _MS_BIND, None), f"bind {path}")


def _share_directory() -> None:
    """As ``ip netns`` has it: mounts made there are seen by everybody whose mounts follow ours."""
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    where = os.fsencode(DIRECTORY)
    if _libc.mount(b"", where, b"none", _MS_SHARED | _MS_REC, None) == 0:
        return
    _checked(_libc.mount(where, where, b"none", _MS_BIND | _MS_REC, None), f"bind {DIRECTORY}")
    _checked(_libc.mount(b"", where, b"none", _MS_SHARED | _MS_REC, None), f"share {DIRECTORY}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
