"""Actions as ordinary users of the machine: forks of the test that become an existing account without processes."""

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
    """A user in the machine's databases; its primary group by name."""

    name: str
    uid: int
    gid: int
    group: str


def _user(name: str) -> User:
    entry = pwd.getpwnam(name)
    return User(name, entry.pw_uid, entry.pw_gid, grp.getgrgid(entry.pw_gid).gr_name)


# Users that exist on every Debian and run nothing.
ANN, BOB, EVE = _user("games"), _user("news"), _user("nobody")


def as_user(user: User, action: Callable[[], Answer]) -> Answer:
    """Run an action as a user; return its result or raise its error here."""
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
    """Permit all users to pass through to a directory below the temporary one."""
    temporary = Path(tempfile.gettempdir())
    for part in (directory, *directory.parents):
        if part != temporary and part.is_relative_to(temporary):
            part.chmod(part.stat().st_mode & 0o777 | 0o011)
