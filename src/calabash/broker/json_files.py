"""Read and write state files in JSON, replaced atomically and readable by their owner only."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from calabash.adapters.host.files import disk_full_is_a_reason, write_durably
from calabash.model.errors import CalabashError, Reason

FILE_BYTES_MAX = 16 << 20

Shape = TypeVar("Shape", bound=msgspec.Struct)


def write_struct(path: Path, content: msgspec.Struct) -> None:
    """Replace a file atomically and durably with the JSON of ``content``, with mode 0600."""
    with disk_full_is_a_reason(f"cannot write {path}"):
        write_durably(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def read_struct(path: Path, shape: type[Shape]) -> Shape:
    """Decode a state file.

    Raises:
        CalabashError: BAD_FILE if the content is invalid. The message never contains the content, which may be secret.
    """
    try:
        with path.open("rb") as source:
            return msgspec.json.decode(source.read(FILE_BYTES_MAX), type=shape)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise CalabashError(
            f"{path} is damaged",
            reason=Reason.BAD_FILE,
            hint="restore a backup, or move the file away to start with an empty one",
        ) from None
