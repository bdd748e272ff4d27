"""Commands to running daemons (``dpif/show``, ``tnl/neigh/show``) over their control sockets, without a program in between."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

from calabash.model.errors import CalabashError, Reason

_ANSWER_BYTES_MAX = 64 * 2**20


def ask(control: Path, command: str, words: Sequence[str] = (), *, timeout_s: float = 30) -> str:
    """What the daemon answers. Raises CalabashError: API_DOWN when it does not, BAD_REQUEST with its own words else."""
    request = json.dumps({"id": 0, "method": command, "params": list(words)}).encode()
    try:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.settimeout(timeout_s)
            daemon.connect(str(control))
            daemon.sendall(request)
            answer = _whole(daemon)
    except OSError as error:
        raise CalabashError(
            f"{control.stem} does not answer {command}: {error}",
            reason=Reason.API_DOWN,
            hint="`calabash net status` says which daemons run",
        ) from error
    if answer.get("error") is not None:
        raise CalabashError(f"{control.stem}: {command}: {' '.join(str(answer['error']).split())[:300]}")
    return str(answer.get("result") or "")


def _whole(daemon: socket.socket) -> dict[str, object]:
    """One object of JSON; the other end says nothing of its length and keeps the connection open."""
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
    raise OSError("half an answer")
