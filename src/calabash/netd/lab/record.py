"""What a lab is made of, on disk: written before anything is made. And where labs of this machine are registered."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from calabash.model.errors import CalabashError
from calabash.netd.lab import packages

HOSTS_MAX, GATEWAYS_MAX = 64, 8
_FIRST_HOST, _FIRST_GATEWAY = 11, 201
_FILE = "lab.json"
_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")
_TAKEN = frozenset({"none", "fab", "ctl", "world", "central", "authority", "vlans"})
_PATH_BYTES_MAX = 107 - len("/h1234567/ovs-vswitchd.ctl")  # of the address of a Unix socket


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRecord:
    """``phase`` is "", "coming up", "up" or "going down"."""

    prefix: str
    hosts: tuple[str, ...]
    gateways: tuple[str, ...]
    dummy: bool = False
    phase: str = ""

    def with_phase(self, phase: str) -> LabRecord:
        return replace(self, phase=phase)

    def numbers(self) -> dict[str, int]:
        """The last byte of the addresses of each host and gateway host."""
        hosts = zip(self.hosts, range(_FIRST_HOST, _FIRST_GATEWAY), strict=False)
        return dict((*hosts, *zip(self.gateways, range(_FIRST_GATEWAY, 255), strict=False)))

    def check(self) -> None:
        """Raises CalabashError for names and numbers that cannot be."""
        names = (*self.hosts, *self.gateways)
        for what, name in (("prefix", self.prefix), *(("host", name) for name in names)):
            if not _NAME.fullmatch(name) or (what == "host" and name in _TAKEN):
                raise CalabashError(
                    f"{what} {name[:40]!r} is no name for it",
                    hint="take a letter and up to seven letters or digits: h1",
                )
        if len(set(names)) != len(names) or not names:
            raise CalabashError("hosts and gateways need names of their own, and there must be one at least")
        if len(self.hosts) > HOSTS_MAX or len(self.gateways) > GATEWAYS_MAX:
            raise CalabashError(
                f"{len(self.hosts)} hosts and {len(self.gateways)} gateway hosts are more than "
                f"{HOSTS_MAX} and {GATEWAYS_MAX}",
                hint="a lab is for trying; real hosts join by ovn-controller of their own",
            )

    def write(self, directory: Path) -> None:
        if len(os.fsencode(directory)) > _PATH_BYTES_MAX:
            raise CalabashError(
                f"{directory} is longer than {_PATH_BYTES_MAX} bytes, too long for sockets in it",
                hint="name a shorter directory",
            )
        new = directory / (_FILE + ".new")
        new.write_text(json.dumps(asdict(self)) + "\n")
        new.replace(directory / _FILE)

    @classmethod
    def read(cls, directory: Path) -> LabRecord | None:
        """None when there is none, or not a whole one."""
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
    """Where labs are found by their prefix: root's in /run, as namespaces are the machine's; of others in their own cache."""
    return Path("/run/calabash-net") if os.geteuid() == 0 else packages.cached().parent / "net"


def registered() -> list[str]:
    """Prefixes of all labs, also of those that came up half."""
    return sorted(place.stem for place in register().glob("*.lab"))


@contextlib.contextmanager
def alone(prefix: str) -> Iterator[None]:
    """While it lasts, no other process brings a lab of that prefix up or down."""
    register().mkdir(mode=0o700, parents=True, exist_ok=True)
    place = register() / f"{prefix}.lock"
    while True:
        with open(place, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is(place, lock.fileno()):
                continue  # who had it before has taken the file away with its lab
            try:
                yield
            finally:
                if not (register() / f"{prefix}.lab").is_symlink():
                    place.unlink(missing_ok=True)
            return


def mark_of(prefix: str) -> tuple[int, int] | None:
    """By which a lab is told from another one of its prefix before or after it; None where there is none."""
    try:
        found = (register() / f"{prefix}.lab").lstat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


@contextlib.contextmanager
def lasting(prefix: str, mark: tuple[int, int] | None) -> Iterator[bool]:
    """Whether the lab of that mark is up; it then stays until the end, as who takes it away waits. Nothing may be made in one
    that is not."""
    with contextlib.ExitStack() as held:
        try:
            lock = held.enter_context(open(register() / f"{prefix}.lock"))
        except FileNotFoundError:
            yield False
            return
        if _is_up(prefix, mark):  # else who waits for the lock is not to wait for one more
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield _is_up(prefix, mark) and _is(register() / f"{prefix}.lock", lock.fileno())


def begin_to_end(prefix: str) -> None:
    """From now on nobody begins to make anything in a lab that is up."""
    with contextlib.suppress(OSError):  # somebody else takes it away just now
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


def _is(place: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(place.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
