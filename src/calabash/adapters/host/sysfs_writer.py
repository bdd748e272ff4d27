"""Write to files of the kernel with a deadline.

Unbinding a device from its driver may block as long as a process has it open. A helper process therefore writes and is
waited for with a deadline. When the deadline passes, the helper stays in its write, and the next write gets a new
helper: a blocked write costs a process and never a thread of the agent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from calabash.adapters.host.children import start_program
from calabash.adapters.host.readable import readable
from calabash.model.errors import CalabashError, Reason

_HELPER = Path(__file__).with_name("sysfs_helper.py")
_START_S = 30.0  # for an interpreter to start on a busy machine
_BLOCKED_MAX = 16


class BlockedError(OSError):
    """The kernel has not completed a write in time; the write continues and may still succeed."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__(errno.ETIMEDOUT, f"no answer within {timeout_s:g} s", str(path))


def refused(error: OSError, what: str, meanings: Mapping[int, str] | None, *, otherwise: Reason) -> CalabashError:
    """Return the CalabashError for a write that the kernel refused.

    Args:
        what: description of the write, for the message.
        meanings: for error numbers with a known cause, the text "cause; hint".
        otherwise: reason of the CalabashError if the kernel's error is not a missing permission.
    """
    number = error.errno or 0
    cause, _, hint = (meanings or {}).get(number, f"{os.strerror(number)}; see `dmesg`").partition("; ")
    name = errno.errorcode.get(number, str(number))
    reason = Reason.NOT_PERMITTED if number in {errno.EACCES, errno.EPERM, errno.EROFS} else otherwise
    return CalabashError(f"{what}: {cause} ({name})", reason=reason, hint=hint)


class KernelWriter(Protocol):
    """Writer of the kernel's files."""

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        """Write the text in one system call. Raises OSError with the kernel's number, BlockedError after ``timeout_s``."""
        ...


class HelperWriter:
    """Implementation of ``KernelWriter`` by a helper process, started with the first write.

    One write runs at a time; callable from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []  # blocked helpers, reaped when they have ended

    def write(self, path: Path, text: str, *, timeout_s: float) -> None:
        with self._lock:
            self._left = [helper for helper in self._left if helper.poll() is None]
            if len(self._left) >= _BLOCKED_MAX:
                raise BlockedError(path, 0.0)  # a further write would block too
            helper = self._helper
            if helper is None or helper.poll() is not None:
                helper = self._start()
            number = self._ask(helper, {"path": str(path), "text": text}, timeout_s)
            if number is None:
                self._leave(helper)
                raise BlockedError(path, timeout_s)
        if number:
            raise OSError(number, os.strerror(number), str(path))

    def blocked(self) -> int:
        """Return the number of writes that are blocked inside the kernel."""
        with self._lock:
            self._left = [helper for helper in self._left if helper.poll() is None]
            return len(self._left)

    def close(self) -> None:
        """End the helper; blocked helpers end when the kernel completes their writes."""
        with self._lock:
            helper, self._helper = self._helper, None
            if helper is not None:
                _close_pipes(helper)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    helper.wait(timeout=_START_S)

    def _start(self) -> subprocess.Popen[bytes]:
        self._helper = start_program(
            [sys.executable, "-I", "-S", str(_HELPER)],
            environment={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            new_session=True,  # Ctrl-C is the agent's to handle
        )
        self._answer(self._helper, _START_S)
        return self._helper

    def _leave(self, helper: subprocess.Popen[bytes]) -> None:
        self._helper = None
        _close_pipes(helper)
        self._left.append(helper)

    def _ask(self, helper: subprocess.Popen[bytes], question: Mapping[str, str], timeout_s: float) -> int | None:
        """Send a write to the helper; return the kernel's error number, 0 for success.

        Returns None if the kernel has not completed the write within ``timeout_s``, and EPIPE if the helper has ended.
        """
        assert helper.stdin is not None
        try:
            helper.stdin.write(json.dumps(question).encode() + b"\n")
            helper.stdin.flush()
        except OSError:
            return errno.EPIPE
        return self._answer(helper, timeout_s)

    @staticmethod
    def _answer(helper: subprocess.Popen[bytes], timeout_s: float) -> int | None:
        assert helper.stdout is not None
        deadline = time.monotonic() + timeout_s
        answer = b""
        while not answer.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not readable(helper.stdout.fileno(), left_s):
                return None
            more = os.read(helper.stdout.fileno(), 4096)
            if not more:
                return errno.EPIPE  # it was killed
            answer += more
        number: int = json.loads(answer)["errno"]
        return number


def _close_pipes(helper: subprocess.Popen[bytes]) -> None:
    for pipe in (helper.stdin, helper.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
