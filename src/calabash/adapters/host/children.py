"""Start child processes: modules of this product and programs of the machine.

Every child of the product is started here, so that what a caller leaves in its working directory and its environment
never decides which code runs:

* A module of this product runs in an isolated interpreter (``launch.py``), which takes the package from where this process
  has it.
* A program of the machine is named by an absolute path, or found by :func:`find_program`: for root in fixed directories of
  the system, for other users by their PATH too.
* The working directory is ``/``, standard input is ``/dev/null``, descriptors are closed, and the environment holds the
  names of an allow-list only. Everything else that a child needs is passed as an argument.

Programs of users (``calabash run``, jobs) are not started here: they are the user's own, with the user's environment
and directory, and never root's.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
PROGRAM_PATH = "CALABASH_PROGRAM_PATH"  # further directories, which root alone may write

# Variables that a child may inherit. All have BASIC and a PATH; the other groups are named where a child is started.
BASIC = ("HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_TIME", "TZ", "TZDIR", PROGRAM_PATH)
DATABASE = (  # of libpq, for journals in PostgreSQL
    "PGAPPNAME",
    "PGCONNECT_TIMEOUT",
    "PGDATABASE",
    "PGHOST",
    "PGHOSTADDR",
    "PGOPTIONS",
    "PGPASSFILE",
    "PGPASSWORD",
    "PGPORT",
    "PGSERVICE",
    "PGSERVICEFILE",
    "PGSSLCERT",
    "PGSSLCRL",
    "PGSSLKEY",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGTARGETSESSIONATTRS",
    "PGUSER",
)
AUTHORITIES = ("SSL_CERT_DIR", "SSL_CERT_FILE")  # of OpenSSL, for identity providers, webhooks and mail
LIBRARIES = ("LD_LIBRARY_PATH",)  # where the driver is, on machines where the loader does not know it
PACKAGES = (  # of APT, which fetches OVN
    "CALABASH_DEBIAN_MIRROR",
    "XDG_CACHE_HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)

_LAUNCHER = Path(__file__).with_name("launch.py")
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
_UMASK = 0o022
_USUAL_PRIORITY = "CALABASH_USUAL_PRIORITY"
_TRUSTED = frozenset({"/usr/sbin", "/usr/bin", "/sbin", "/bin"})  # assumed to be writable by root only
_PATHS = frozenset({"LD_LIBRARY_PATH", PROGRAM_PATH})

Stream = int | IO[bytes] | None


# -- modules of this product -----------------------------------------------------------------------------------


def module_command(module: str, *arguments: str, urgent: bool = False) -> list[str]:
    """Return the command line that runs a module of this product in an isolated interpreter.

    Args:
        urgent: True to raise its priority, see ``launch``.

    Raises RuntimeError if the path of this process's interpreter is not known.
    """
    if not os.path.isabs(sys.executable or ""):
        raise RuntimeError(f"the interpreter {sys.executable!r} has no absolute path")
    flags = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]
    search = [word for directory in _search_path() for word in ("--search", directory)]
    return [sys.executable, *flags, str(_LAUNCHER), *(["--urgent"] if urgent else []), *search, module, *arguments]


def end_urgency() -> None:
    """Return to the usual priority, in a module that was started with a raised one (``urgent``)."""
    usual = os.environ.pop(_USUAL_PRIORITY, "")
    if usual:
        os.setpriority(os.PRIO_PROCESS, 0, int(usual))
        if os.getsid(0) == os.getpid():
            with suppress(OSError):
                Path("/proc/self/autogroup").write_text("0")


def start_module(
    module: str,
    *arguments: str,
    inherit: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    pass_fds: Sequence[int] = (),
    new_session: bool = False,
    urgent: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a module of this product.

    Args:
        urgent: True to raise the priority of the module if that is permitted; the module then calls ``end_urgency``.
        arguments: arguments of the module; paths must be absolute.
        inherit: names of variables that the module inherits besides those of BASIC.
        environment: further variables.
        new_session: True to give it a session of its own, so that the terminal's signals do not reach it.
    """
    return subprocess.Popen(
        module_command(module, *arguments, urgent=urgent),
        cwd="/",
        env=child_environment(inherit) | dict(environment or {}),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        start_new_session=new_session,
        umask=_UMASK,
    )


def run_module(
    module: str, *arguments: str, inherit: Iterable[str] = (), text: bytes, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a module of this product with ``text`` as its standard input. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        module_command(module, *arguments),
        cwd="/",
        env=child_environment(inherit),
        input=text,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        umask=_UMASK,
    )


def become_module(module: str, *arguments: str, inherit: Iterable[str] = ()) -> NoReturn:
    """Replace this process by a module of this product; the arguments are those of :func:`start_module`."""
    command, environment = module_command(module, *arguments), child_environment(inherit)
    os.chdir("/")
    os.umask(_UMASK)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.execve(command[0], command, environment)  # noqa: S606 - no shell is wanted


def _search_path() -> list[str]:
    """Return the directories in which this process finds modules, but an isolated interpreter would not.

    Neither the working directory nor the directory of the script that was started is among them.
    """
    left_out = {_PACKAGE_PARENT, _working_directory()}
    if not sys.flags.safe_path:
        left_out.update(sys.path[:1])
    begins = tuple(f"{prefix.rstrip('/')}/" for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    return [
        directory
        for directory in dict.fromkeys(sys.path)
        if os.path.isabs(directory) and directory not in left_out and not directory.startswith(begins)
    ]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # deleted
        return ""


# -- programs of the machine -----------------------------------------------------------------------------------


def find_program(name: str, *, also: Iterable[str] = ()) -> Path | None:
    """Return the absolute path of a program; None if it is not installed.

    The directories of CALABASH_PROGRAM_PATH, those of the system, and ``also`` are searched in this order; for users
    other than root PATH is searched before them. For root, a program outside of the system's directories is ignored
    unless root alone can write the program and every directory above it.
    """
    if "/" in name:
        raise ValueError(f"{name} is a path, not the name of a program")
    given = os.environ.get(PROGRAM_PATH, "").split(":")
    if os.geteuid() != 0:
        return _found(name, [*os.environ.get("PATH", "").split(":"), *given, *SYSTEM_DIRECTORIES, *also])
    found = (_found(name, [directory]) for directory in (*given, *SYSTEM_DIRECTORIES, *also))
    return next((p for p in found if p is not None and (str(p.parent) in _TRUSTED or root_alone_writes(p))), None)


def require_program(name: str) -> Path:
    """Return the path of a program, as :func:`find_program`. Raises FileNotFoundError if it is not installed."""
    found = find_program(name)
    if found is None:
        raise FileNotFoundError(2, "not found in the directories of the system", name)
    return found


def start_program(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    pass_fds: Sequence[int] = (),
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program by its absolute path, or by its name as :func:`find_program` finds it. Raises OSError.

    Args:
        environment: all variables of the program.
        pass_fds: descriptors that the program inherits.
        new_session: True to give it a session of its own, so that the terminal's signals do not reach it.
    """
    return subprocess.Popen(
        absolute(command),
        cwd="/",
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        start_new_session=new_session,
    )


def run_program(
    command: Sequence[str],
    *,
    timeout_s: float,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    directory: Path = Path("/"),
    account: tuple[int, int] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends and return what it wrote. Raises OSError, subprocess.TimeoutExpired.

    Args:
        command: as for :func:`start_program`.
        text: standard input of the program.
        environment: all variables of the program; None: those of BASIC, and a PATH.
        directory: working directory of the program.
        account: user and group of the program, which has no other groups; None for those of this process.
    """
    user, group = account if account is not None else (None, None)
    return subprocess.run(
        absolute(command),
        cwd=directory,
        env=child_environment() if environment is None else environment,
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        user=user,
        group=group,
        extra_groups=None if account is None else [],
    )


def become_program(command: Sequence[str], *, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a program that the user of this process named; keep the directory. Raises OSError."""
    words = absolute(command)
    os.execve(words[0], words, environment)  # noqa: S606 - no shell is wanted


def absolute(command: Sequence[str]) -> list[str]:
    """Return the command line with the absolute path of its program. Raises FileNotFoundError."""
    program = str(command[0])
    return [program if os.path.isabs(program) else str(require_program(program)), *map(str, command[1:])]


def root_alone_writes(path: Path) -> bool:
    """Return True if only root can replace or change the file, or any directory of its path.

    A directory that all users may write is accepted if it is sticky, as /tmp is: files of root in it cannot be
    replaced.
    """
    try:
        real = path.resolve(strict=True)
        return all(_roots(place.stat()) for place in (real, *real.parents))
    except OSError:
        return False


def _roots(found: os.stat_result) -> bool:
    shared = bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return found.st_uid == 0 and (not shared or (stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)))


def _found(name: str, directories: Sequence[str]) -> Path | None:
    """Return the first executable of that name; relative directories and the empty one are skipped."""
    path = ":".join(directory for directory in directories if os.path.isabs(directory))
    found = shutil.which(name, path=path) if path else None
    return None if found is None else Path(found)


# -- the environment -------------------------------------------------------------------------------------------


def child_environment(inherit: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables of a child: those of BASIC and of ``inherit`` that this process has, and a PATH.

    For root, directories that other users can write are removed from variables that are search paths.
    """
    environment = {name: os.environ[name] for name in (*BASIC, *inherit) if name in os.environ}
    if os.geteuid() == 0:
        for name in _PATHS & environment.keys():
            kept = [d for d in environment.pop(name).split(":") if os.path.isabs(d) and root_alone_writes(Path(d))]
            if kept:
                environment[name] = ":".join(kept)
    return environment | {"PATH": search_path()}


def search_path() -> str:
    """Return the PATH of a child: for root the directories of the system, for other users their own."""
    own = os.environ.get("PATH", "") if os.geteuid() != 0 else ""
    return own or ":".join(SYSTEM_DIRECTORIES)
