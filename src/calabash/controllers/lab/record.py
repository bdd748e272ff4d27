"""Description of a lab on disk, written before the lab is created, and the register of labs on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from calabash.controllers.lab import packages
from calabash.model.errors import CalabashError

HOSTS_MAX, GATEWAYS_MAX = 64, 8
_FIRST_HOST, _FIRST_GATEWAY = 11, 201
_FILE = "lab.json"
_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")
_RESERVED = frozenset({"none", "fab", "ctl", "world", "central", "authority", "vlans"})
_PATH_BYTES_MAX = 107 - len("/h1234567/ovs-vswitchd.ctl")  # limit of Unix socket addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRecord:
    """Description of a lab.

    Args:
        prefix: prefix of the lab's namespaces.
        hosts, gateways: names of the hosts and of the gateway hosts.
        dummy: the lab has only a control plane.
        phase: "coming up" while it is created, "up", or "going down" while it is removed; "" before.
    """

    prefix: str
    hosts: tuple[str, ...]
    gateways: tuple[str, ...]
    dummy: bool = False
    phase: str = ""

    def with_phase(self, phase: str) -> LabRecord:
        return replace(self, phase=phase)

    def numbers(self) -> dict[str, int]:
        """Return the last byte of the addresses of each host and gateway host, by name."""
        hosts = zip(self.hosts, range(_FIRST_HOST, _FIRST_GATEWAY), strict=False)
        return dict((*hosts, *zip(self.gateways, range(_FIRST_GATEWAY, 255), strict=False)))

    def check(self) -> None:
        """Raise CalabashError if names or numbers of hosts are invalid."""
        names = (*self.hosts, *self.gateways)
        for what, name in (("prefix", self.prefix), *(("host", name) for name in names)):
            if not _NAME.fullmatch(name) or (what == "host" and name in _RESERVED):
                raise CalabashError(
                    f"{what} {name[:40]!r} is not a valid name",
                    hint="use a letter and up to seven letters or digits, such as h1",
                )
        if len(set(names)) != len(names) or not names:
            raise CalabashError("names of hosts and gateways must be unique, and at least one host is needed")
        if len(self.hosts) > HOSTS_MAX or len(self.gateways) > GATEWAYS_MAX:
            raise CalabashError(
                f"{len(self.hosts)} hosts and {len(self.gateways)} gateway hosts exceed the limits "
                f"{HOSTS_MAX} and {GATEWAYS_MAX}",
                hint="a lab is for trials; real hosts join with their own ovn-controller",
            )

    def write(self, directory: Path) -> None:
        """Write the description atomically. Raises CalabashError if the directory name is too long for Unix sockets."""
        if len(os.fsencode(directory)) > _PATH_BYTES_MAX:
            raise CalabashError(
                f"{directory} is longer than {_PATH_BYTES_MAX} bytes, the limit for Unix sockets in it",
                hint="use a shorter directory",
            )
        new = directory / (_FILE + ".new")
        new.write_text(json.dumps(asdict(self)) + "\n")
        new.replace(directory / _FILE)

    @classmethod
    def read(cls, directory: Path) -> LabRecord | None:
        """Read the description, or return None if it is missing or invalid."""
        try:
            raw = json.loads((directory / _FILE).read_text())
            return cls(
                prefix=str(raw["prefix"]),
                hosts=tuple(map(str, raw["hosts"])),
                gateways=tuple(map(str, raw["gateways"])),
                dummy=bool(raw["dummy"]),
                phase=str(raw["phase"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def register() -> Path:
    """Return the directory of registered labs.

    For root the directory is in /run, because namespaces belong to the machine; for others it is in the user's cache.
    """
    return Path("/run/calabash-net") if os.geteuid() == 0 else packages.cached().parent / "net"


def registered() -> list[str]:
    """Return the prefixes of all labs, including incomplete ones."""
    return sorted(place.stem for place in register().glob("*.lab"))


@contextlib.contextmanager
def exclusive(prefix: str) -> Iterator[None]:
    """Lock a prefix, so that no other process brings its lab up or down meanwhile."""
    register().mkdir(mode=0o700, parents=True, exist_ok=True)
    place = register() / f"{prefix}.lock"
    while True:
        with open(place, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_same_file(place, lock.fileno()):
                continue  # the previous holder has removed the file with its lab
            try:
                yield
            finally:
                if not (register() / f"{prefix}.lab").is_symlink():
                    place.unlink(missing_ok=True)
            return


def mark_of(prefix: str) -> tuple[int, int] | None:
    """Return a value that distinguishes the present lab of a prefix from later ones; None if there is no lab."""
    try:
        found = (register() / f"{prefix}.lab").lstat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


@contextlib.contextmanager
def lasting(prefix: str, mark: tuple[int, int] | None) -> Iterator[bool]:
    """Yield True if the lab with that mark is up, and prevent its removal while the context lasts.

    A process that removes the lab waits until the context ends. If the result is False, nothing may be created in the
    lab.

    Args:
        mark: the lab's value of ``mark_of``; None for no lab.
    """
    with contextlib.ExitStack() as held:
        try:
            lock = held.enter_context(open(register() / f"{prefix}.lock"))
        except FileNotFoundError:
            yield False
            return
        if _is_up(prefix, mark):  # do not delay a process that waits to take the lab down
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield _is_up(prefix, mark) and _is_same_file(register() / f"{prefix}.lock", lock.fileno())


def mark_going_down(prefix: str) -> None:
    """Mark a lab that is up as going down, so that nothing new is created in it."""
    with contextlib.suppress(OSError):  # another process is removing it
        directory = Path(os.readlink(register() / f"{prefix}.lab"))
        record = LabRecord.read(directory)
        if record is not None and record.phase == "up":
            record.with_phase("going down").write(directory)


def _is_up(prefix: str, mark: tuple[int, int] | None) -> bool:
    if mark is None or mark_of(prefix) != mark:
        return False
    try:
        record = LabRecord.read(Path(os.readlink(register() / f"{prefix}.lab")))
    except OSError:
        return False
    return record is not None and record.phase == "up"


def _is_same_file(place: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(place.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
