"""The leases on disk: a file that is replaced as a whole before anybody is told, readable by its owner only (it has keys)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from calabash.broker.json_files import read_struct, write_struct
from calabash.broker.server.lease_table import HeldLease

LEASES_FILE = "leases.json"


class KeptLeases(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What a broker has to know when it starts again."""

    leases: list[HeldLease] = []
    draining: bool = False


class LeaseJournal:
    """``leases.json`` in a directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LEASES_FILE
        self._turn = asyncio.Lock()
        self._wanted = KeptLeases()

    def read(self) -> KeptLeases:
        """Raises CalabashError(BAD_FILE) when it is damaged."""
        return read_struct(self._path, KeptLeases) if self._path.exists() else KeptLeases()

    async def write(self, leases: Sequence[HeldLease], *, draining: bool) -> None:
        """On disk when it returns; of several at the same time the last counts."""
        self._wanted = KeptLeases(leases=list(leases), draining=draining)
        async with self._turn:
            await asyncio.to_thread(write_struct, self._path, self._wanted)
