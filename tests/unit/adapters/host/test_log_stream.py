"""Log on a full disk: the log line is dropped, and the daemon continues."""

from __future__ import annotations

import errno
import io
import sys

import pytest
import structlog

from calabash.adapters.host.log_stream import log_stream


class FullDisk(io.StringIO):
    """File that accepts no text, as on a full disk."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.ENOSPC, f"no room for {len(text)} characters")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "no room")


def test_lines_that_cannot_be_written_are_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    log = structlog.PrintLoggerFactory(log_stream())()
    monkeypatch.setattr(sys, "stderr", FullDisk())
    log.msg("a line that is lost")
    later = io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)
    log.msg("there is room again")
    assert later.getvalue() == "there is room again\n"
