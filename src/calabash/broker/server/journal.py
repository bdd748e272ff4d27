"""Journal of leases, from which a broker restores its leases after a restart.

The file is replaced atomically before a change is reported to the client. It contains the keys of leases, so only its
owner can read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from calabash.broker.json_files import read_struct, write_struct
from calabash.broker.server.lease_table import HeldLease

LEASES_FILE = "leases.json"


class KeptLeases(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """State that a broker restores when it starts: its leases, and whether it refuses new ones (``draining``)."""

    leases: list[HeldLease] = []
    draining: bool = False


class LeaseJournal:
    """Reads and writes ``leases.json`` in a directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LEASES_FILE
        self._write_lock = asyncio.Lock()
        self._wanted = KeptLeases()

    def read(self) -> KeptLeases:
        """Return the stored state; empty if there is no file. Raises BAD_FILE if the file is damaged."""
        return read_struct(self._path, KeptLeases) if self._path.exists() else KeptLeases()

    async def write(self, leases: Sequence[HeldLease], *, draining: bool) -> None:
        """Store the state durably.

        If calls overlap, the state of the last call is the one that stays in the file; each call returns only when a
        state at least as new as its own is stored.
        """
        self._wanted = KeptLeases(leases=list(leases), draining=draining)
        async with self._write_lock:
            await asyncio.to_thread(write_struct, self._path, self._wanted)
