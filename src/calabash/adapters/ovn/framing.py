"""Split a stream of JSON-RPC messages, which has no delimiters, into messages."""

from __future__ import annotations

import codecs
import json
from typing import Any

BYTES_MAX = 1 << 30  # far more than all networks of a pool need


class BrokenStreamError(Exception):
    """The stream is not JSON-RPC."""


class Messages:
    """Buffer of received text that is not decoded yet.

    The stream has no delimiters, so the end of a message is found by decoding it. This is tried only when the received
    text may end a message. The decoder is C code. A message with a database of ten thousand rows then takes tenths of a
    second.
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")()  # a character may lie in two chunks
        self._parts: list[str] = []
        self._length = 0
        self._read = json.JSONDecoder().raw_decode

    def fed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Add a chunk and return the messages that are complete now. Raises BrokenStreamError.

        The caller must pass all bytes that could be received at that moment as one chunk, so that few attempts to
        decode are made.
        """
        try:
            part = self._text.decode(chunk)
        except UnicodeDecodeError as error:
            raise BrokenStreamError(str(error)) from error
        self._parts.append(part)
        self._length += len(part)
        if self._length > BYTES_MAX:
            raise BrokenStreamError(f"a message of more than {BYTES_MAX >> 20} MiB")
        if not part.rstrip().endswith("}"):
            return []
        whole = "".join(self._parts)
        found, at = self._messages(whole)
        rest = whole[at:]
        self._parts, self._length = ([rest], len(rest)) if rest else ([], 0)
        return found

    def _messages(self, whole: str) -> tuple[list[dict[str, Any]], int]:
        found, at = [], 0
        while at < len(whole):
            if whole[at] in " \r\n\t":
                at += 1
                continue
            if whole[at] != "{":
                raise BrokenStreamError(f"no message begins with {whole[at]!r}")
            try:
                message, at = self._read(whole, at)
            except json.JSONDecodeError:
                break  # it has not ended yet
            found.append(message)
        return found, at
