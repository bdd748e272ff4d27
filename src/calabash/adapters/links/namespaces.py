"""Named network namespaces in ``/run/netns``, where ``ip netns`` finds them too."""

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
    """Return the path of a namespace; it need not exist."""
    return DIRECTORY / name


def names(prefix: str) -> list[str]:
    """Return the names with this prefix, including those that a crash left incomplete."""
    try:
        return sorted(name for name in os.listdir(DIRECTORY) if name.startswith(prefix))
    except FileNotFoundError:
        return []


def exists(name: str) -> bool:
    """Return True if the namespace exists; an incomplete one, a plain file without a mount, does not."""
    try:
        return os.stat(path_of(name)).st_dev == os.stat(_ITSELF).st_dev
    except OSError:
        return False


def create(name: str) -> None:
    """Create a namespace with only ``lo``; an existing one is kept.

    Raises OSError if that fails; the name then does not exist.
    """
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
    """Remove the name, and the namespace once no process is in it; does nothing if it does not exist."""
    path = path_of(name)
    while _libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
        pass  # concurrent creators may have mounted it twice
    path.unlink(missing_ok=True)


def inside(path: Path | None, work: Callable[[], Answer]) -> Answer:
    """Return the result of ``work`` in the namespace at ``path``; None: in this process's. Raises OSError."""
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
    """Make mounts in the directory propagate to other mount namespaces, as ``ip netns`` does."""
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
