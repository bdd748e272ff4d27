"""Keeper: the supervisor process of one job, ``python -I -m calabash.pool.jobs.keeper``.

It starts the job, stores its output, and records how the job has ended.

Theory of operation. A keeper runs as the pool's user in a session of its own, so jobs survive the end of the pool. It reads its
order from standard input and forks the job's process, which first switches to the user's account (``jobs.program``). The output
comes through a pipe, of which the last 64 KiB are stored; reading is limited to some MiB per second. SIGTERM to the keeper
stops the job: SIGTERM to its process group, SIGKILL five seconds later. The pool ends other processes in the job's control
group with its allocation. The keeper writes all state to the files of the job.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from calabash.adapters.host.accounts import account_of
from calabash.adapters.host.processes import start_time
from calabash.api.jobs import JobOrder, JobState
from calabash.pool.jobs.files import OUTPUT_BYTES, JobFacts, JobFiles
from calabash.pool.jobs.program import JobStart, become_program

KILL_S = 5.0
WRITE_EVERY_S = 0.5
CHUNK_BYTES = 64 << 10
HELD_UP_S = 0.005  # after each full pipe: at most some MiB a second
SAID_BYTES_MAX = 16 << 10
WORDS_MAX = 500


class KeeperOrder(msgspec.Struct, kw_only=True, frozen=True):
    """Order to a keeper: the job, its account, and the directories of the pool and of the job's files."""

    id: str
    uid: int
    home: str
    directory: str
    order: JobOrder


class JobKeeper:
    """Supervisor of one job from its start to its end."""

    def __init__(self, told: KeeperOrder) -> None:
        self._told = told
        self._files = JobFiles(Path(told.directory))
        self._facts = JobFacts(keeper=(os.getpid(), start_time(os.getpid())))
        self._output = bytearray()
        self._said = bytearray()
        self._written_s = 0.0
        self._dirty = False
        self._stopped = False
        self._kill_at_s: float | None = None
        self._selector = selectors.DefaultSelector()
        self._wake, wakes = socket.socketpair()
        for end in (self._wake, wakes):
            end.setblocking(False)
        self._wakes = wakes
        signal.set_wakeup_fd(wakes.fileno())
        signal.signal(signal.SIGTERM, lambda *_: None)

    def run(self) -> None:
        """Start the job and supervise it until its process has ended."""
        program, output, said = self._started()
        pidfd = os.pidfd_open(program)
        self._facts.program = (program, start_time(program))
        self._write_facts()
        for descriptor in (output, said, pidfd, self._wake.fileno()):
            self._selector.register(descriptor, selectors.EVENT_READ)
        over = False
        while not over:
            ready = {key.fd for key, _ in self._selector.select(self._pause_s())}
            if self._wake.fileno() in ready:
                self._stop(program)
            if said in ready:
                self._hear(said)
            if output in ready:
                self._read(output)
            if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                _signalled(program, signal.SIGKILL)
                self._kill_at_s = None
            self._write_output()
            over = pidfd in ready
        self._end(program, output, said)

    def _started(self) -> tuple[int, int, int]:
        """Fork the job's process; return its pid, and the descriptors of its output and of its start report."""
        account = account_of(self._told.uid)
        output, speaks = os.pipe()
        said, report_end = os.pipe()
        program = os.fork()
        if program == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for new, old in enumerate((nothing, speaks, speaks)):
                os.dup2(old, new)
            report_end = os.dup2(report_end, 3, inheritable=False)
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            become_program(self._told.order, home=self._told.home, account=account, told=report_end)
        os.close(speaks)
        os.close(report_end)
        os.set_blocking(output, False)
        os.set_blocking(said, False)
        return program, output, said

    def _pause_s(self) -> float | None:
        due = [] if self._kill_at_s is None else [self._kill_at_s]
        due += [self._written_s + WRITE_EVERY_S] if self._dirty else []
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _stop(self, program: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(64)
        if not self._stopped:
            self._stopped = True
            self._kill_at_s = time.monotonic() + KILL_S
            _signalled(program, signal.SIGTERM)

    def _hear(self, said: int) -> None:
        chunk = os.read(said, SAID_BYTES_MAX)
        if chunk:
            self._said = (self._said + chunk)[:SAID_BYTES_MAX]
            return
        self._selector.unregister(said)
        if self._note_start():
            self._facts.state, self._facts.started_at = JobState.RUNNING, time.time()
            self._write_facts()

    def _note_start(self) -> bool:
        """Decode the start report of the job's process; return True if the job has an allocation."""
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            start = msgspec.json.decode(bytes(self._said), type=JobStart)
            self._facts.allocation = start.allocation[:64]
            self._facts.reason, self._facts.message, self._facts.hint = (
                text[:WORDS_MAX] for text in (start.reason, start.message, start.hint)
            )
        return bool(self._facts.allocation)

    def _read(self, output: int) -> bool:
        """Read a chunk of output; return True if there was any."""
        try:
            chunk = os.read(output, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(output)
            return False
        self._output += chunk
        self._facts.dropped_bytes += max(0, len(self._output) - OUTPUT_BYTES)
        del self._output[:-OUTPUT_BYTES]
        self._dirty = True
        if len(chunk) == CHUNK_BYTES:
            time.sleep(HELD_UP_S)
        return True

    def _write_facts(self) -> None:
        with contextlib.suppress(OSError):
            self._files.write_facts(self._told.id, self._facts)

    def _write_output(self, *, now: bool = False) -> None:
        now_s = time.monotonic()
        if self._dirty and (now or now_s - self._written_s >= WRITE_EVERY_S):
            with contextlib.suppress(OSError):  # a full disk ends no job
                self._files.write_output(self._told.id, bytes(self._output))
            self._written_s, self._dirty = now_s, False

    def _end(self, program: int, output: int, said: int) -> None:
        _, status = os.waitpid(program, 0)
        code = os.waitstatus_to_exitcode(status)
        if not self._facts.started_at:
            with contextlib.suppress(BlockingIOError):
                self._said = (self._said + os.read(said, SAID_BYTES_MAX))[:SAID_BYTES_MAX]
            if self._note_start():
                self._facts.started_at = time.time()
        for _ in range(2 * OUTPUT_BYTES // CHUNK_BYTES):  # output left in the pipe; other processes may still write
            if output not in self._selector.get_map() or not self._read(output):
                break
        ran = self._facts.started_at is not None
        self._facts.state = JobState.STOPPED if self._stopped else JobState.ENDED if ran else JobState.FAILED
        self._facts.exit_code = (128 - code if code < 0 else code) if ran else None
        if not ran and not self._stopped and not self._facts.message:
            self._facts.message = "its process ended before its program was started"
        self._facts.ended_at = time.time()
        self._write_output(now=True)
        self._write_facts()
        for end in (self._wake, self._wakes):
            end.close()
        self._selector.close()


def _signalled(program: int, number: signal.Signals) -> None:
    """Send a signal to the job's process group. The process is not reaped yet, so its pid was not reused."""
    try:
        os.killpg(program, number)
    except ProcessLookupError:  # the process has not created its group yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, number)


def main() -> int:
    """Read a ``KeeperOrder`` from standard input and supervise its job."""
    told = msgspec.json.decode(sys.stdin.buffer.read(), type=KeeperOrder)
    JobKeeper(told).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
