"""Commands to running daemons of OVN and Open vSwitch, such as ``dpif/show``, through their control sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

from calabash.model.errors import CalabashError, Reason

_ANSWER_BYTES_MAX = 64 * 2**20


def ask(control: Path, command: str, words: Sequence[str] = (), *, timeout_s: float = 30) -> str:
    """Send a command to a daemon and return its reply.

    Args:
        control: path of the daemon's control socket.
        command: name of the command.
        words: arguments of the command.

    Raises:
        CalabashError: API_DOWN if it does not respond, BAD_REQUEST with the error of the daemon.
    """
    request = json.dumps({"id": 0, "method": command, "params": list(words)}).encode()
    try:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.settimeout(timeout_s)
            daemon.connect(str(control))
            daemon.sendall(request)
            answer = _read_object(daemon)
    except OSError as error:
        raise CalabashError(
            f"{control.stem} does not respond to {command}: {error}",
            reason=Reason.API_DOWN,
            hint="`calabash net status` shows which daemons are running",
        ) from error
    if answer.get("error") is not None:
        raise CalabashError(f"{control.stem}: {command}: {' '.join(str(answer['error']).split())[:300]}")
    return str(answer.get("result") or "")


def _read_object(daemon: socket.socket) -> dict[str, object]:
    """Read one JSON object. The daemon sends no length and keeps the connection open."""
    data = bytearray()
    while len(data) < _ANSWER_BYTES_MAX:
        more = daemon.recv(1 << 20)
        data += more
        if not more or data.endswith(b"}"):
            try:
                found = json.loads(data)
            except ValueError:
                if not more:
                    break
                continue
            if isinstance(found, dict):
                return found
    raise OSError("incomplete reply")
