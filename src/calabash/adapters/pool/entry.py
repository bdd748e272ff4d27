"""Run a program in the network namespace of its ports.

Each allocation with ports has a *keeper*, a process of the pool that starts programs in that namespace. The program
gets the standard input and output of this process, and the signals that this process receives.

Imported by ``calabash run``: imports nothing slow.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys

from calabash.model.errors import CalabashError, Reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

FORWARDED = frozenset(
    int(number)
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGCONT,
    )
)
_TOLD_BYTES_MAX = 1 << 16


def run_behind(socket_path: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the program and return its exit code, 128 plus the signal's number if a signal ended it.

    Args:
        socket_path: socket on which the allocation's keeper listens.

    Raises CalabashError if the program was not started.
    """
    order = {
        "command": list(command),
        "environment": dict(environment),
        "directory": os.getcwd(),
        "umask": _umask(),
    }
    words = json.dumps(order).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeper:
        try:
            keeper.connect(socket_path)
            socket.send_fds(keeper, [b"\0"], [0, 1, 2])
            _forward_signals(keeper)
            keeper.sendall(struct.pack("!I", len(words)) + words)
            told = _told(keeper)
        except OSError as error:
            raise CalabashError(
                f"the program could not be started in its network: {error.strerror or error}",
                reason=Reason.CONFLICT,
                hint="try again",
            ) from error
    if "code" in told:
        return int(told["code"])
    raise CalabashError(
        str(told.get("message") or "the keeper of the program has ended"),
        reason=_reason(told.get("reason")),
        hint=str(told.get("hint") or "see the pool's log"),
    )


def _forward_signals(keeper: socket.socket) -> None:
    def forward(number: int, _frame: object) -> None:
        try:  # noqa: SIM105 - contextlib is slow to import
            keeper.send(bytes([number]), socket.MSG_DONTWAIT)
        except OSError:
            pass
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    for number in FORWARDED:
        signal.signal(number, forward)


def _told(keeper: socket.socket) -> dict[str, Any]:
    """Return what the keeper reports when the program has ended or could not be started; {} without a report.

    Args:
        keeper: connection to the keeper.
    """
    said = bytearray()
    wait = select.poll()
    wait.register(keeper, select.POLLIN)
    while len(said) < _TOLD_BYTES_MAX:
        wait.poll()
        chunk = keeper.recv(4096)
        if not chunk:
            break
        said += chunk
    try:
        found = json.loads(said)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(text: object) -> Reason:
    return Reason(text) if isinstance(text, str) and text in set(Reason) else Reason.CONFLICT


def _umask() -> int:
    known = os.umask(0)
    os.umask(known)
    return known


def leave(code: int) -> NoReturn:
    """End this process with the program's exit code."""
    sys.stdout.flush()
    os._exit(code)
