"""Files of jobs: order, state and output, in a directory that only the pool's user can read.

The pool writes ``ID.order`` once. The keeper process of the job, which outlives the pool, writes ``ID.facts`` and
``ID.output``. So no file has two writers, and a restarted pool finds all jobs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from calabash.adapters.host.files import write_durably
from calabash.api.jobs import JobOrder, JobState
from calabash.model.errors import CalabashError, Reason

OUTPUT_BYTES = 64 << 10
_ID = re.compile(r"j[a-z0-9]{8}")
_FILE_BYTES_MAX = 1 << 20

Shape = TypeVar("Shape")


class JobRecord(msgspec.Struct, kw_only=True, frozen=True):
    """Order of a job with its user and tenant."""

    id: str
    user: str
    uid: int
    tenant: str
    queue: str
    order: JobOrder
    created_at: float


class JobFacts(msgspec.Struct, kw_only=True):
    """State of a job, written by its keeper, the process that supervises the job.

    Args:
        keeper: pid and start time of the keeper process.
        program: pid and start time of the job's process.
        allocation: ID of the job's allocation; "" before it has one.
        reason: code of the error that kept the program from being started; ``message`` and ``hint`` are its texts.
        dropped_bytes: number of bytes at the beginning of the output that are not stored any more.
    """

    state: JobState = JobState.WAITING
    keeper: tuple[int, int] = (0, 0)
    program: tuple[int, int] = (0, 0)
    allocation: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    hint: str = ""
    dropped_bytes: int = 0


class JobFiles:
    """Directory of all jobs of a pool."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self, record: JobRecord) -> None:
        """Write the order of a new job. Raises OSError."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        write_durably(self._path(record.id, "order"), msgspec.json.encode(record))

    def records(self) -> list[JobRecord]:
        """Return the orders of all jobs, newest first, without files that cannot be read."""
        found = [self.record(path.stem) for path in self.directory.glob("j*.order")]
        return sorted((r for r in found if r is not None), key=lambda r: (-r.created_at, r.id))

    def record(self, name: str) -> JobRecord | None:
        return _read(self._path(name, "order"), JobRecord) if _ID.fullmatch(name) else None

    def facts(self, name: str) -> JobFacts | None:
        """Return the state of a job; None before its keeper has begun."""
        return _read(self._path(name, "facts"), JobFacts)

    def write_facts(self, name: str, facts: JobFacts) -> None:
        """Write the state of a job. Called only by the keeper of the job. Raises OSError."""
        write_durably(self._path(name, "facts"), msgspec.json.encode(facts))

    def output(self, name: str) -> bytes:
        """Return the last OUTPUT_BYTES of a job's output."""
        try:
            return self._path(name, "output").read_bytes()[-OUTPUT_BYTES:]
        except OSError:
            return b""

    def write_output(self, name: str, content: bytes) -> None:
        """Replace the output file by the last OUTPUT_BYTES of ``content``. Called only by the keeper. Raises OSError."""
        coming = self._path(name, "coming")
        descriptor = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content[-OUTPUT_BYTES:])
        coming.replace(self._path(name, "output"))

    def delete(self, name: str) -> None:
        """Delete all files of a job. The order is deleted last, so that an interrupted deletion can be repeated."""
        for part in ("coming", "output", "facts", "order"):
            self._path(name, part).unlink(missing_ok=True)

    def _path(self, name: str, part: str) -> Path:
        if not _ID.fullmatch(name):
            raise CalabashError(
                f"there is no job {name[:80]!r}", reason=Reason.NOT_FOUND, hint="see `calabash job list`"
            )
        return self.directory / f"{name}.{part}"


def _read(path: Path, shape: type[Shape]) -> Shape | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_FILE_BYTES_MAX), type=shape)
    except (OSError, ValueError):
        return None
