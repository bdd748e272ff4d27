"""Ordinary users of the machine, as forks of the test. They are nobody's that the machine has, so they need no home."""

from __future__ import annotations

import grp
import os
import pickle
import pwd
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class User:
    """A user that the machine's databases have; its primary group by name."""

    name: str
    uid: int
    gid: int
    group: str


def _user(name: str) -> User:
    entry = pwd.getpwnam(name)
    return User(name, entry.pw_uid, entry.pw_gid, grp.getgrgid(entry.pw_gid).gr_name)


# Users that every Debian has and that run nothing.
ANN, BOB, EVE = _user("games"), _user("news"), _user("nobody")


def as_user(user: User, action: Callable[[], Answer]) -> Answer:
    """What it returns when the user does it; what it raises there is raised here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            os.setgroups([])
            os.setgid(user.gid)
            os.setuid(user.uid)
            try:
                outcome: tuple[bool, Any] = (True, action())
            except BaseException as error:
                outcome = (False, f"{error!r}")
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    done, found = pickle.loads(data)
    if not done:
        raise AssertionError(f"as {user.name}: {found}")
    answer: Answer = found
    return answer


def open_way(directory: Path) -> None:
    """Let everybody pass through to a directory below the temporary one."""
    temporary = Path(tempfile.gettempdir())
    for part in (directory, *directory.parents):
        if part != temporary and part.is_relative_to(temporary):
            part.chmod(part.stat().st_mode & 0o777 | 0o011)
