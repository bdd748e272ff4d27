"""Start the end recorder and read the ends that earlier recorders have written."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path, PurePath

import structlog

from calabash.adapters.host.children import start_module
from calabash.model.allocation import AllocationRecord
from calabash.model.request import Isolation
from calabash.node.metering.end_file import LastSeen, fingerprint, read_ends, replace_ends, served_name
from calabash.sharing.registry import SHARING_MODES

AGAIN_NS = 1_000_000_000

log = structlog.get_logger(__name__)


class RecordedEnds:
    """Ends of allocations that the end recorders of earlier pools have written, and the recorder process of this pool.

    Args:
        boot: ID of the present boot of this machine.
        arguments: arguments of the recorder, from ``recorder_arguments``; (): no recorder is started.
    """

    def __init__(self, home: Path, boot: str, arguments: tuple[str, ...]) -> None:
        self._home, self._boot, self._arguments = home, boot, arguments
        self._read: tuple[object, Mapping[str, LastSeen]] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ns = -AGAIN_NS
        self._stopped = False

    def last_seen(self, record: AllocationRecord) -> LastSeen | None:
        """Return the times at which a recorder saw the member processes of an allocation; None if no recorder did.

        The worker of a brokered allocation does not count, as it outlives the program.
        """
        mode = SHARING_MODES.get(record.placement.mode)
        brokered = mode is not None and mode.isolation is Isolation.BROKERED
        slot = PurePath(record.slot).name
        state = fingerprint(self._home)
        if self._read is None or self._read[0] != state:
            self._read = state, read_ends(self._home, self._boot)
        return self._read[1].get(served_name(slot) if brokered else slot)

    def ensure_running(self) -> None:
        """Start the recorder if it does not run, at most once a second."""
        if not self._arguments or self._stopped or (self._process is not None and self._process.poll() is None):
            return
        if time.monotonic_ns() - self._started_ns < AGAIN_NS:
            return
        self._started_ns = time.monotonic_ns()
        if self._process is not None:
            log.warning("the end recorder ended and is started again", code=self._process.returncode)
            self._close()
        words = ("--home", str(self._home.absolute()), "--parent", str(os.getpid()), *self._arguments)
        try:
            self._process = start_module(
                "calabash.node.metering.end_recorder", *words, stdin=subprocess.PIPE, new_session=True
            )
        except OSError as error:
            log.error("the end recorder cannot be started", error=str(error))

    def take_over(self, kept: dict[str, LastSeen]) -> None:
        """Replace the files of the recorders of earlier pools by one file of this pool. These recorders then end.

        Args:
            kept: ends that the next pool must know, by slot name; they are written to a new file.
        """
        try:
            replace_ends(self._home, self._boot, kept | {served_name(slot): seen for slot, seen in kept.items()})
        except OSError as error:
            log.error("the files of the end recorder cannot be replaced", error=str(error))

    def stop(self, *, needed: bool) -> None:
        """End the recorder, or let it begin to record if allocations still have programs (``needed``).

        Called when the pool stops.
        """
        self._stopped = True
        if self._process is None:
            return
        if needed:
            self._close()
        else:
            self._process.kill()
            self._process.wait()
            self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
