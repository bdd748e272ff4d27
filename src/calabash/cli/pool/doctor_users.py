"""Checks of ``calabash doctor``, as root, that other users can use the pool.

The checks run as the user ``nobody``, which owns nothing, so that they pass only if all users have the permissions. A failed
check names the first component of the path whose mode excludes other users.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import calabash
from calabash.adapters.host.children import run_program
from calabash.adapters.host.reach import Barrier, barrier_to_others

NOBODY = 65534
_TRY_S = 30.0
_PACKAGE = Path(calabash.__file__).resolve().parent
SHIM = _PACKAGE / "_native" / "lib" / "libcalabash.so"
_LEFT_OUT = "cannot be preloaded"  # said by the dynamic loader, which then runs the program without the library


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Result of a check that other users can use a file of the pool.

    Args:
        subject: ``command``, ``shim`` or ``socket``.
        wrong: the obstacle; "" if there is none.
        hint: remedy for the obstacle.
    """

    subject: str
    wrong: str = ""
    hint: str = ""


def attempts(socket: Path, interpreter: Path = Path(sys.executable), shim: Path = SHIM) -> Iterator[Attempt]:
    """Try the command, the shim and the pool's socket as ``nobody``, and yield the result of each.

    Args:
        socket: the pool's socket; a missing one, because no pool runs, is no obstacle.
        interpreter: Python that runs the command.
        shim: library that programs on slices preload.
    """
    command = [str(interpreter), "-I", "-m", "calabash.cli.main", "--version"]
    barrier = _barrier((interpreter, True)) or _barrier((_PACKAGE / "__init__.py", False))
    wrong = _tried(command, {})
    yield _attempt("command", wrong, barrier, also=_another_python(interpreter, barrier))
    wrong = _tried(["/bin/true"], {"LD_PRELOAD": str(shim)}) if shim.is_file() else f"{shim} is missing"
    yield _attempt("shim", wrong, _barrier((shim, False)))
    barrier = _barrier((socket, False))
    yield _attempt("socket", str(barrier or ""), barrier)


def _attempt(subject: str, wrong: str, barrier: Barrier | None, *, also: str = "") -> Attempt:
    if not wrong:
        return Attempt(subject=subject)
    if barrier is None:
        return Attempt(subject=subject, wrong=wrong, hint="run `calabash doctor` as another user")
    return Attempt(subject=subject, wrong=str(barrier), hint=barrier.command + also)


def _tried(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a program as ``nobody`` and return the error; "" if it succeeded and the library of LD_PRELOAD was loaded."""
    try:
        done = run_program(command, timeout_s=_TRY_S, environment=environment, account=(NOBODY, NOBODY))
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {_TRY_S:g}s"
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode or _LEFT_OUT in done.stderr:
        return (done.stderr.strip().splitlines() or [f"{command[0]} ended with {done.returncode}"])[-1]
    return ""


def _another_python(interpreter: Path, barrier: Barrier | None) -> str:
    """Return a second remedy, to create the virtual environment again with another Python; "" if that does not help.

    It helps if the path component that excludes other users is outside the environment, for example if the environment
    uses a Python in /root.

    Args:
        interpreter: Python of the virtual environment.
        barrier: path component that excludes other users; None if there is none.
    """
    environment = interpreter.parent.parent
    if barrier is None or environment.name != ".venv" or _barrier((environment, False)):
        return ""
    return f", or `rm -r {environment}` and `make setup`, which prefers a Python that other users can run"


def _barrier(file: tuple[Path, bool]) -> Barrier | None:
    path, execute = file
    try:
        return barrier_to_others(path, execute=execute)
    except OSError:
        return None
