"""What an empty context costs on cards of each model, in a file: a pool that starts while no card can be tried out (all of
them are full, or do not answer) holds its slices to their size all the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from calabash.seams.host.files import write_durably

CONTEXTS_FILE = "contexts.json"

log = structlog.get_logger(__name__)


class ContextBook:
    """The file. What is damaged there is as if it were not."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[str, int]:
        """Bytes by model."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.warning("what contexts cost was not read", file=str(self._file), error=str(error))
            return {}

    def write(self, contexts: Mapping[str, int]) -> None:
        try:
            write_durably(self._file, msgspec.json.encode(dict(contexts)))
        except OSError as error:
            log.warning("what contexts cost was not kept", file=str(self._file), error=str(error))
