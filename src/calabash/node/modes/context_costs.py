"""File with the memory of an empty CUDA context per device model.

A pool that starts while no device can be probed, because all are full or do not answer, enforces its slices with these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from calabash.adapters.host.files import write_durably

CONTEXTS_FILE = "contexts.json"

log = structlog.get_logger(__name__)


class KnownContexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file: bytes by model, and the boot ID and driver versions of the measurement (``learned_under``)."""

    contexts: dict[str, int] = {}
    learned_under: str = ""


class ContextCostFile:
    """The file of context costs. A damaged file is treated as empty."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> KnownContexts:
        try:
            content = self._file.read_bytes()
            try:
                return msgspec.json.decode(content, type=KnownContexts)
            except msgspec.ValidationError:  # written by a version that stored only the bytes by model
                return KnownContexts(contexts=msgspec.json.decode(content, type=dict[str, int]))
        except FileNotFoundError:
            return KnownContexts()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the file of context costs cannot be read", file=str(self._file), error=str(error))
            return KnownContexts()

    def write(self, contexts: Mapping[str, int], *, learned_under: str) -> None:
        known = KnownContexts(contexts=dict(contexts), learned_under=learned_under)
        try:
            write_durably(self._file, msgspec.json.encode(known))
        except OSError as error:
            log.warning("the file of context costs cannot be written", file=str(self._file), error=str(error))
