"""Keeper process that starts one program in the network namespace of an allocation and reports its exit status.

Theory of operation. ``python -I -m calabash.node.ports.entry_keeper`` runs as root in its own session and is no member of the
allocation, so it survives the end of the pool and of the tenant. A caller connects to the entry socket; the kernel
tells its user and groups. The caller sends its standard input, output and error. The keeper forks the process of the program,
which enters the namespace, becomes a member, becomes the caller's user without network capabilities, and only then
reads the command (``entering_process``): nothing that a tenant writes is read as root. If the caller closes the connection, the
program is ended; if the keeper is killed, the kernel kills the program.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import msgspec

from calabash.adapters.pool.client import PoolClient
from calabash.adapters.pool.entry import FORWARDED
from calabash.api import endpoints
from calabash.model.errors import CalabashError, Reason
from calabash.node.ports.entering_process import Entrant, become_program
from calabash.node.ports.entry_sockets import KeeperOrder

CONNECT_WITHIN_S = 10.0
KILL_S = 5.0
DESCRIPTORS = 3
_ANSWER_S = 30.0
_GROUP_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH}


class ProgramKeeper:
    """One program from the connection of its caller to its exit."""

    def __init__(self, order: KeeperOrder, caller: socket.socket) -> None:
        self._order = order
        self._caller = caller
        self._kill_at_s: float | None = None

    def run_program(self, descriptors: list[int]) -> dict[str, object]:
        """Start the program and wait for its exit. Return the answer for the caller.

        The answer has the exit code (``code``), or the reason, message and hint of an error.
        """
        go, goes = os.pipe()
        begun, begins = os.pipe()
        keeper = os.getpid()
        program = os.fork()
        if program == 0:
            os.close(goes)
            os.close(begun)
            become_program(
                Entrant(
                    namespace=Path(self._order.namespace),
                    resolver_file=Path(self._order.resolver_file) if self._order.resolver_file else None,
                    lease=self._order.lease,
                    descriptors=tuple(descriptors),
                    go=go,
                    begins=begins,
                    keeper=keeper,
                ),
                self._caller,
            )
        for descriptor in (go, begins, *descriptors):
            os.close(descriptor)
        try:
            if self._order.member:
                PoolClient(self._order.home).send(
                    endpoints.REPORT_START, self._order.allocation, body={"pid": program}, timeout_s=_ANSWER_S
                )
            os.write(goes, b"g")
        except CalabashError as error:
            os.kill(program, signal.SIGKILL)
            os.waitpid(program, 0)
            return {"reason": str(error.reason), "message": error.message, "hint": error.hint}
        finally:
            os.close(goes)
        os.read(begun, 1)  # end of file: the program was executed, or has exited
        os.close(begun)
        return {"code": self._watch(program)}

    def _watch(self, program: int) -> int:
        pidfd = os.pidfd_open(program)
        self._caller.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(pidfd, selectors.EVENT_READ)
            selector.register(self._caller, selectors.EVENT_READ)
            while True:
                pause_s = None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())
                ready = {key.fd for key, _ in selector.select(pause_s)}
                if pidfd in ready:
                    break
                if self._caller.fileno() in ready and not self._forward_signals(program):
                    selector.unregister(self._caller)
                if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                    _send(program, signal.SIGKILL)
                    self._kill_at_s = None
        os.close(pidfd)
        _, status = os.waitpid(program, 0)
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _forward_signals(self, program: int) -> bool:
        """Send the program the signals that its caller forwards. Return False if the caller has closed the connection."""
        try:
            numbers = self._caller.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            numbers = b""
        if not numbers:
            _send(program, signal.SIGTERM)
            self._kill_at_s = time.monotonic() + KILL_S
        for number in numbers:
            if number in FORWARDED:
                _send(program, signal.Signals(number))
        return bool(numbers)


def _send(program: int, number: signal.Signals) -> None:
    """Send a signal to the program. SIGKILL, and signals that a terminal sends to a process group, go to its group."""
    with contextlib.suppress(ProcessLookupError):
        if number in _GROUP_SIGNALS or number == signal.SIGKILL:
            os.killpg(program, number)
        else:
            os.kill(program, number)


def _accept_caller(listener: socket.socket, uid: int) -> socket.socket | None:
    """Return the first connection of the user; None if there is none within ``CONNECT_WITHIN_S``."""
    deadline_s = time.monotonic() + CONNECT_WITHIN_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            return None
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[1] == uid:
            return caller
        caller.close()
    return None


def _receive_descriptors(caller: socket.socket) -> list[int]:
    """Return the caller's standard input, output and error. Raises BAD_REQUEST if it does not send three descriptors."""
    caller.settimeout(CONNECT_WITHIN_S)
    found = array.array("i")
    try:
        _, ancillary, flags, _ = caller.recvmsg(
            1, socket.CMSG_SPACE(DESCRIPTORS * found.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        ancillary, flags = [], 0
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    if len(found) != DESCRIPTORS or flags & socket.MSG_CTRUNC:
        for descriptor in found:
            os.close(descriptor)
        raise CalabashError("the caller sent no standard input, output and error", reason=Reason.BAD_REQUEST)
    return found.tolist()


def main() -> int:
    """Read a ``KeeperOrder`` from standard input, wait for the caller, and run the caller's program until it exits.

    Returns 1 if no caller connects.
    """
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=KeeperOrder)
    with socket.socket(fileno=order.listener) as listener:
        os.set_inheritable(order.listener, False)
        caller = _accept_caller(listener, order.uid)
    if caller is None:
        return 1
    with caller:
        try:
            answer = ProgramKeeper(order, caller).run_program(_receive_descriptors(caller))
        except CalabashError as error:
            answer = {"reason": str(error.reason), "message": error.message, "hint": error.hint}
        with contextlib.suppress(OSError):
            caller.settimeout(CONNECT_WITHIN_S)
            caller.sendall(json.dumps(answer).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
