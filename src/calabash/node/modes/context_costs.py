"""What an empty context costs on cards of each model, in a file: a pool that starts while no card can be tried out (all of
them are full, or do not answer) holds its slices to their size all the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably

CONTEXTS_FILE = "contexts.json"

log = structlog.get_logger(__name__)


class KnownContexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes by model, and ``learned_under``: the boot of the machine and the driver with which they were measured."""

    contexts: dict[str, int] = {}
    learned_under: str = ""


class ContextBook:
    """The file. What is damaged there is as if it were not."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> KnownContexts:
        try:
            content = self._file.read_bytes()
            try:
                return msgspec.json.decode(content, type=KnownContexts)
            except msgspec.ValidationError:  # of a version that kept the bytes by model alone
                return KnownContexts(contexts=msgspec.json.decode(content, type=dict[str, int]))
        except FileNotFoundError:
            return KnownContexts()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("what contexts cost was not read", file=str(self._file), error=str(error))
            return KnownContexts()

    def write(self, contexts: Mapping[str, int], *, learned_under: str) -> None:
        known = KnownContexts(contexts=dict(contexts), learned_under=learned_under)
        try:
            write_durably(self._file, msgspec.json.encode(known))
        except OSError as error:
            log.warning("what contexts cost was not kept", file=str(self._file), error=str(error))
